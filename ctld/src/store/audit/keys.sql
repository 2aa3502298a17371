-- An idempotency key names one operation: a submission's its own job and no other's, of its tenant and user.
SELECT format('key %s of %s', k.key, k.identity) AS what, CASE
        WHEN j.id IS NULL THEN format('it names job %s, which there is not', k.job_id)
        ELSE format('it names job %s, which is %s''s in tenant %s', j.id, j.user_name, j.tenant_id)
    END AS detail
FROM idempotency_keys k LEFT JOIN jobs j ON j.id = k.job_id
WHERE k.job_id IS NOT NULL AND (j.user_name, j.tenant_id) IS DISTINCT FROM (k.identity, k.tenant_id)
UNION ALL
SELECT format('job %s', job_id), format('%s keys name it: %s', count(*), string_agg(key, ', ' ORDER BY key))
FROM idempotency_keys WHERE job_id IS NOT NULL GROUP BY job_id HAVING count(*) > 1
