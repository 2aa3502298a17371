-- What has ended holds nothing.
SELECT format('allocation %s', a.id) AS what, format('it was released at %s and still has %s booked', a.released_at, b.of) AS detail
FROM (
    SELECT allocation_id, format('part of node %s', node_id) AS of FROM node_bookings
    UNION ALL
    SELECT allocation_id, format('%s of GPU %s', atom, gpu_id) FROM device_bookings
) b JOIN allocations a ON a.id = b.allocation_id
WHERE a.released_at IS NOT NULL
UNION ALL
SELECT format('attempt %s', t.id), format('it ended at %s, and its allocation %s is live', t.ended_at, a.id)
FROM attempts t JOIN allocations a ON a.attempt_id = t.id
WHERE t.ended_at IS NOT NULL AND a.released_at IS NULL
UNION ALL
SELECT format('attempt %s', t.id), 'it has not ended, and all its allocations are released'
FROM attempts t
WHERE t.ended_at IS NULL AND NOT EXISTS (SELECT FROM allocations a WHERE a.attempt_id = t.id AND a.released_at IS NULL)
UNION ALL
SELECT format('reservation %s', r.id), format('it is %s and still has %s booked', r.state, b.of)
FROM (
    SELECT reservation_id, format('part of node %s', node_id) AS of FROM node_bookings
    UNION ALL
    SELECT reservation_id, format('%s of GPU %s', atom, gpu_id) FROM device_bookings
) b JOIN reservations r ON r.id = b.reservation_id
WHERE r.ended_at IS NOT NULL
UNION ALL
SELECT format('change %s of GPU %s', c.id, c.gpu_id), format('it is %s, and its window is still booked', c.state)
FROM device_bookings b JOIN gpu_changes c ON c.id = b.change_id
WHERE c.ended_at IS NOT NULL
UNION ALL
SELECT format('change %s of GPU %s', c.id, c.gpu_id), 'it is booked, and nothing keeps its window free'
FROM gpu_changes c
WHERE c.ended_at IS NULL AND NOT EXISTS (SELECT FROM device_bookings b WHERE b.change_id = c.id)
