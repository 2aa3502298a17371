-- A live allocation has booked exactly its share: its amounts on its node, and as many of that node's GPUs as its job asked.
SELECT format('allocation %s', a.id) AS what, CASE
        WHEN b.id IS NULL THEN 'it is live and has booked nothing of its node'
        ELSE format('its share is %s CPUs, %s MiB and %s MiB of disk on node %s; booked are %s, %s and %s on node %s', a.cpus,
            a.mem_mib, a.disk_mib, a.node_id, b.cpus, b.mem_mib, b.disk_mib, b.node_id)
    END AS detail
FROM allocations a LEFT JOIN node_bookings b ON b.allocation_id = a.id
WHERE a.released_at IS NULL
    AND (b.node_id, b.cpus, b.mem_mib, b.disk_mib, b.reservation_id)
        IS DISTINCT FROM (a.node_id, a.cpus, a.mem_mib, a.disk_mib, a.reservation_id)
UNION ALL
SELECT format('allocation %s', a.id), format('its job asks for %s GPUs a node, and %s are booked', j.gpus, coalesce(d.gpus, 0))
FROM allocations a
JOIN attempts t ON t.id = a.attempt_id
JOIN jobs j ON j.id = t.job_id
LEFT JOIN (SELECT allocation_id, count(DISTINCT (gpu_id, atom)) AS gpus FROM device_bookings WHERE kind = 'allocation'
    GROUP BY allocation_id) d ON d.allocation_id = a.id
WHERE a.released_at IS NULL AND NOT j.exclusive AND j.gpus <> coalesce(d.gpus, 0)
UNION ALL
SELECT format('allocation %s', a.id), format('it is on node %s and has booked GPU %s of node %s', a.node_id, g.uuid, g.node_id)
FROM device_bookings d JOIN allocations a ON a.id = d.allocation_id JOIN gpus g ON g.id = d.gpu_id
WHERE g.node_id <> a.node_id
UNION ALL
SELECT format('allocation %s', d.allocation_id), format('it has GPU %s during %s and its node during %s', d.gpu_id, d.during, b.during)
FROM device_bookings d JOIN node_bookings b ON b.allocation_id = d.allocation_id
WHERE lower(d.during) <> lower(b.during)
