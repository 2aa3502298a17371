-- What is in use is booked: no live allocation is past the end of a booking of its.
SELECT format('allocation %s', a.id) AS what, format('it has not ended, and its booking of %s ended at %s', b.of, b.until_at) AS detail
FROM (
    SELECT b.allocation_id, format('node %s', n.name) AS of, upper(b.during) AS until_at
    FROM node_bookings b JOIN nodes n ON n.id = b.node_id
    UNION ALL
    SELECT b.allocation_id, format('GPU %s', g.uuid), upper(b.during)
    FROM device_bookings b JOIN gpus g ON g.id = b.gpu_id
) b
JOIN allocations a ON a.id = b.allocation_id
WHERE a.released_at IS NULL AND b.until_at <= compute_now()
