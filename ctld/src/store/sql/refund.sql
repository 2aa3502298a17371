-- Gives back what tenants were charged. A ceiling above the limit, which stood for use from before the limit was set, falls
-- with the use. An amount below zero is a charge of what goes on whatever the limit says: the ceiling rises with it.
-- Every column is the locked row's: the CHECK looks at the new row before PostgreSQL sees that q is from before the wait.
WITH given AS (
    SELECT * FROM unnest($1::int[], $2::text[], $3::bigint[]) AS t (tenant_id, resource, amount)
), locked AS (
    SELECT q.tenant_id, q.resource, q.used, q.max, g.amount
    FROM quota_usage q JOIN given g ON g.tenant_id = q.tenant_id AND g.resource = q.resource
    ORDER BY q.tenant_id, q.resource
    FOR UPDATE OF q
)
UPDATE quota_usage q
SET used = l.used - l.amount, max = l.max,
    ceiling = CASE WHEN l.max IS NOT NULL THEN GREATEST(l.max, l.used - l.amount) END
FROM locked l
WHERE q.tenant_id = l.tenant_id AND q.resource = l.resource
