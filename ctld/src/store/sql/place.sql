-- Turns placements into attempts, allocations and node bookings from now on, takes their tasks out of the queue and their
-- amounts out of the nodes; inside a reservation ($9) the nodes' amounts are the reservation's already. The rows involved
-- are locked by the caller; the constraints stand behind it.
WITH input AS (
    SELECT *
    FROM unnest($1::bigint[], $2::int[], $3::int[], $4::bigint[], $5::int[], $6::bigint[], $7::bigint[], $8::double precision[], $10::jsonb[])
        AS t (job_id, task, position, node_id, cpus, mem_mib, disk_mib, lasts_s, charge)
), tasks AS (
    SELECT DISTINCT job_id, task FROM input
), made AS (
    INSERT INTO attempts (job_id, task, number, state, placed_at)
    SELECT t.job_id, t.task,
        coalesce((SELECT max(a.number) FROM attempts a WHERE a.job_id = t.job_id AND a.task = t.task), 0) + 1,
        'starting', compute_now()
    FROM tasks t
    ORDER BY t.job_id, t.task
    RETURNING id, job_id, task
), placed AS (
    INSERT INTO allocations (attempt_id, node_id, position, cpus, mem_mib, disk_mib, reservation_id, charge)
    SELECT m.id, i.node_id, i.position, i.cpus, i.mem_mib, i.disk_mib, $9, i.charge
    FROM input i JOIN made m ON m.job_id = i.job_id AND m.task = i.task
    ORDER BY m.id, i.position
    RETURNING id, attempt_id, node_id, position
), amounts AS (
    UPDATE node_resources r
    SET allocated = r.allocated + CASE r.resource WHEN 'cpus' THEN u.cpus WHEN 'mem_mib' THEN u.mem_mib ELSE u.disk_mib END
    FROM (SELECT node_id, sum(cpus) AS cpus, sum(mem_mib)::bigint AS mem_mib, sum(disk_mib)::bigint AS disk_mib
        FROM input GROUP BY node_id) u
    WHERE r.node_id = u.node_id AND $9::bigint IS NULL AND (r.resource <> 'disk_mib' OR u.disk_mib > 0)
), queue AS (
    UPDATE jobs j
    SET pending = j.pending - u.tasks, active = j.active + u.n, state = 'running', version = j.version + 1
    FROM (
        SELECT job_id, range_agg(int4range(task, task + 1)) AS tasks, count(*)::int AS n FROM tasks GROUP BY job_id
    ) u
    WHERE j.id = u.job_id
), booked AS (
    INSERT INTO node_bookings (allocation_id, node_id, cpus, mem_mib, disk_mib, reservation_id, during)
    SELECT p.id, p.node_id, i.cpus, i.mem_mib, i.disk_mib, $9,
        tstzrange(compute_now(), compute_now() + make_interval(secs => i.lasts_s))
    FROM placed p JOIN made m ON m.id = p.attempt_id
    JOIN input i ON i.job_id = m.job_id AND i.task = m.task AND i.position = p.position
)
SELECT m.job_id AS "job_id!", m.task AS "task!", p.position AS "position!", p.id AS "allocation_id!"
FROM placed p JOIN made m ON m.id = p.attempt_id
