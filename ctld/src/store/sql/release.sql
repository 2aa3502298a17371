-- The one release act: allocations end at the instant their node attests, their amounts go back to the nodes, and their
-- bookings move to history up to that instant. An allocation released before is left alone. One inside a reservation gives
-- nothing back to its node, which the reservation still holds. Those inside one, and those with a charge of their own to
-- give back, are returned.
WITH ended AS (
    UPDATE allocations a
    SET released_at = GREATEST(a.started_at, compute_now() - make_interval(secs => i.age_s))
    FROM unnest($1::bigint[], $2::double precision[]) AS i (id, age_s)
    WHERE a.id = i.id AND a.released_at IS NULL
    RETURNING a.id, a.node_id, a.cpus, a.mem_mib, a.disk_mib, a.reservation_id, a.released_at, a.attempt_id, a.charge
), amounts AS (
    UPDATE node_resources r
    SET allocated = r.allocated - CASE r.resource WHEN 'cpus' THEN u.cpus WHEN 'mem_mib' THEN u.mem_mib ELSE u.disk_mib END
    FROM (SELECT node_id, sum(cpus) AS cpus, sum(mem_mib)::bigint AS mem_mib, sum(disk_mib)::bigint AS disk_mib
        FROM ended WHERE reservation_id IS NULL GROUP BY node_id) u
    WHERE r.node_id = u.node_id AND (r.resource <> 'disk_mib' OR u.disk_mib > 0)
), devices AS (
    DELETE FROM device_bookings b USING ended e WHERE b.allocation_id = e.id
    RETURNING b.gpu_id, b.span, b.during, b.allocation_id, b.reservation_id, b.atom, b.kind, e.released_at
), nodes AS (
    DELETE FROM node_bookings b USING ended e WHERE b.allocation_id = e.id
    RETURNING b.allocation_id, b.reservation_id, b.node_id, b.cpus, b.mem_mib, b.disk_mib, b.during, e.released_at
), past_devices AS (
    INSERT INTO device_bookings_history (gpu_id, span, during, allocation_id, reservation_id, atom, kind)
    SELECT gpu_id, span, tstzrange(lower(during), released_at), allocation_id, reservation_id, atom, kind
    FROM devices WHERE lower(during) < released_at
), past_nodes AS (
    INSERT INTO node_bookings_history (allocation_id, reservation_id, node_id, cpus, mem_mib, disk_mib, during)
    SELECT allocation_id, reservation_id, node_id, cpus, mem_mib, disk_mib, tstzrange(lower(during), released_at)
    FROM nodes WHERE lower(during) < released_at
)
SELECT e.id AS "allocation_id!", e.reservation_id AS "reservation_id?", j.tenant_id, e.charge AS "charge!"
FROM ended e JOIN attempts t ON t.id = e.attempt_id JOIN jobs j ON j.id = t.job_id
WHERE e.reservation_id IS NOT NULL OR e.charge <> '{}'
