-- What a node's counters say is in use is what live allocations and running reservations have.
SELECT format('node %s', n.name) AS what,
    format('%s %s allocated, %s are in use', r.allocated, r.resource, coalesce(u.amount, 0)) AS detail
FROM node_resources r
JOIN nodes n ON n.id = r.node_id
LEFT JOIN (
    SELECT b.node_id, x.resource, sum(x.amount) AS amount
    FROM node_bookings b
    LEFT JOIN reservations v ON v.id = b.reservation_id
    CROSS JOIN LATERAL (VALUES ('cpus', b.cpus::bigint), ('mem_mib', b.mem_mib), ('disk_mib', b.disk_mib)) AS x (resource, amount)
    WHERE CASE WHEN b.allocation_id IS NULL THEN v.state = 'running' ELSE b.reservation_id IS NULL END
    GROUP BY b.node_id, x.resource
) u ON u.node_id = r.node_id AND u.resource = r.resource
WHERE r.allocated <> coalesce(u.amount, 0)
