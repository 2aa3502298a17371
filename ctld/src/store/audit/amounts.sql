-- At every instant what is booked of a node's CPUs, memory and disk is within what it has: a sweep over the whole book. What
-- runs inside a reservation is the reservation's already.
WITH booked AS (
    SELECT b.node_id, x.resource, x.amount, lower(b.during) AS from_at, upper(b.during) AS until_at
    FROM node_bookings b
    CROSS JOIN LATERAL (VALUES ('cpus', b.cpus::bigint), ('mem_mib', b.mem_mib), ('disk_mib', b.disk_mib)) AS x (resource, amount)
    WHERE x.amount > 0 AND (b.allocation_id IS NULL OR b.reservation_id IS NULL)
), changes AS (
    SELECT node_id, resource, from_at AS at, amount FROM booked
    UNION ALL
    SELECT node_id, resource, until_at, -amount FROM booked WHERE until_at IS NOT NULL
), levels AS (
    SELECT node_id, resource, at, sum(sum(amount)) OVER (PARTITION BY node_id, resource ORDER BY at) AS level
    FROM changes GROUP BY node_id, resource, at
)
SELECT format('node %s', n.name) AS what,
    format('%s %s are booked at %s, it has %s', l.level, l.resource, l.at, coalesce(floor(r.allocatable * r.ratio), 0)) AS detail
FROM levels l
JOIN nodes n ON n.id = l.node_id
LEFT JOIN node_resources r ON r.node_id = l.node_id AND r.resource = l.resource
WHERE l.level > coalesce(floor(r.allocatable * r.ratio), 0)
