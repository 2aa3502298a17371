-- Charges tenants all of this, or nothing: nothing if one would pass its limit. The rows are locked in
-- order, and every column is the locked row's: the CHECK looks at the new row before PostgreSQL sees that q is from before
-- the wait.
WITH asked AS (
    SELECT * FROM unnest($1::int[], $2::text[], $3::bigint[]) AS t (tenant_id, resource, amount)
), locked AS (
    SELECT q.tenant_id, q.resource, q.used, q.max, q.ceiling, a.amount, a.amount <= coalesce(q.max, 9223372036854775807) - q.used AS fits
    FROM quota_usage q JOIN asked a ON a.tenant_id = q.tenant_id AND a.resource = q.resource
    ORDER BY q.tenant_id, q.resource
    FOR UPDATE OF q
)
UPDATE quota_usage q SET used = l.used + l.amount, max = l.max, ceiling = l.ceiling
FROM locked l
WHERE q.tenant_id = l.tenant_id AND q.resource = l.resource
    AND (SELECT count(*) = (SELECT count(*) FROM asked) AND bool_and(fits) FROM locked)
