-- A reservation's bookings lie in its time, and what runs inside takes no more than it has and from no earlier on. What
-- overruns a reservation is named for it until it ends, which is the next thing to happen.
SELECT format('reservation %s', r.name) AS what, format('it has %s during %s, itself being from %s to %s', b.of, b.during,
    lower(r.during), upper(r.during)) AS detail
FROM (
    SELECT reservation_id, allocation_id, during, format('part of node %s', node_id) AS of FROM node_bookings
    UNION ALL
    SELECT reservation_id, allocation_id, during, format('%s of GPU %s', atom, gpu_id) FROM device_bookings
) b JOIN reservations r ON r.id = b.reservation_id
WHERE lower(b.during) < lower(r.during)
    OR b.allocation_id IS NULL AND (upper_inf(b.during) OR upper(b.during) > upper(r.during))
    OR b.allocation_id IS NOT NULL AND (upper_inf(b.during) OR upper(b.during) > upper(r.during))
        AND upper(r.during) > compute_now() + interval '1 min'
UNION ALL
SELECT format('reservation %s', r.name), format('%s %s of node %s are in use inside it, it has %s', i.used, i.resource, i.node_id, i.has)
FROM (
    SELECT b.reservation_id, b.node_id, x.resource,
        coalesce(sum(x.amount) FILTER (WHERE b.allocation_id IS NOT NULL), 0) AS used,
        coalesce(sum(x.amount) FILTER (WHERE b.allocation_id IS NULL), 0) AS has
    FROM node_bookings b
    CROSS JOIN LATERAL (VALUES ('cpus', b.cpus::bigint), ('mem_mib', b.mem_mib), ('disk_mib', b.disk_mib)) AS x (resource, amount)
    WHERE b.reservation_id IS NOT NULL
    GROUP BY b.reservation_id, b.node_id, x.resource
) i JOIN reservations r ON r.id = i.reservation_id
WHERE i.used > i.has
UNION ALL
SELECT format('allocation %s', b.allocation_id), format('it runs inside reservation %s, which is %s', r.name, r.state)
FROM node_bookings b JOIN reservations r ON r.id = b.reservation_id
WHERE b.allocation_id IS NOT NULL AND r.state <> 'running'
