-- A tenant's use is what everything of it that has not ended is charged, with what its live allocations were given beyond, that is within its ceiling, and a job is charged for
-- what it asked for.
WITH live AS (
    SELECT id, tenant_id, charge, active + (SELECT coalesce(sum(upper(p) - lower(p)), 0) FROM unnest(pending) p) AS tasks
    FROM jobs WHERE ended_at IS NULL
), charged AS (
    SELECT tenant_id, c.key AS resource, c.value::numeric * tasks AS amount FROM live, jsonb_each_text(charge) c
    UNION ALL
    SELECT j.tenant_id, c.key, c.value::numeric
    FROM allocations a JOIN attempts t ON t.id = a.attempt_id JOIN jobs j ON j.id = t.job_id, jsonb_each_text(a.charge) c
    WHERE a.released_at IS NULL
    UNION ALL
    SELECT tenant_id, c.key, c.value::numeric FROM reservations, jsonb_each_text(charge) c WHERE ended_at IS NULL
), total AS (
    SELECT tenant_id, resource, sum(amount) AS amount FROM charged GROUP BY tenant_id, resource
)
SELECT format('%s of tenant %s', resource, tenant_id) AS what,
    format('%s in use, %s charged', coalesce(q.used, 0), coalesce(t.amount, 0)) AS detail
FROM total t FULL JOIN quota_usage q USING (tenant_id, resource) WHERE coalesce(q.used, 0) <> coalesce(t.amount, 0)
UNION ALL
SELECT format('%s of tenant %s', resource, tenant_id), format('%s in use, at most %s may be', used, ceiling)
FROM quota_usage WHERE used > ceiling OR ceiling < max
UNION ALL
SELECT format('job %s', id), format('it asks for %s CPUs, and is charged %s', cpus::bigint * node_count, charge->>'cpus')
FROM jobs WHERE (charge->>'cpus')::bigint <> cpus::bigint * node_count
