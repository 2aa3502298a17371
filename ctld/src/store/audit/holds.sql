-- Nothing was placed on a node or GPU that a hold kept from taking work, and what placements look at agrees with the holds.
-- A transaction's time is when it began, so with the true clock a minute, longer than one may wait for a lock, is allowed.
WITH slack AS (
    SELECT CASE WHEN EXISTS (SELECT FROM compute_sim_clock) THEN interval '0' ELSE interval '1 min' END AS slack
), kept AS (
    SELECT h.id, h.node_id, h.gpu_id, h.span, h.kind, greatest(h.opened_at, lower(h.during)) AS from_at,
        least(h.closed_at, upper(h.during)) AS until_at
    FROM holds h WHERE NOT isempty(h.during)
)
SELECT format('job %s task %s', t.job_id, t.task) AS what,
    format('placed at %s on node %s, under hold %s (%s) since %s', t.placed_at, n.name, k.id, k.kind, k.from_at) AS detail
FROM kept k CROSS JOIN slack s
JOIN allocations a ON a.node_id = k.node_id
JOIN attempts t ON t.id = a.attempt_id
JOIN nodes n ON n.id = a.node_id
WHERE k.gpu_id IS NULL AND t.placed_at > k.from_at + s.slack AND (k.until_at IS NULL OR t.placed_at < k.until_at)
UNION ALL
SELECT format('job %s task %s', t.job_id, t.task),
    format('placed at %s on GPU %s, under hold %s (%s) since %s', t.placed_at, b.gpu_id, k.id, k.kind, k.from_at)
FROM kept k CROSS JOIN slack s
JOIN device_bookings b ON b.gpu_id = k.gpu_id AND b.span && k.span
JOIN allocations a ON a.id = b.allocation_id
JOIN attempts t ON t.id = a.attempt_id
WHERE k.gpu_id IS NOT NULL AND t.placed_at > k.from_at + s.slack AND (k.until_at IS NULL OR t.placed_at < k.until_at)
UNION ALL
SELECT format('node %s', n.name), format('it takes work, and hold %s (%s) keeps it from that since %s', k.id, k.kind, k.from_at)
FROM nodes n JOIN kept k ON k.node_id = n.id AND k.gpu_id IS NULL CROSS JOIN slack s
WHERE n.eligible AND k.from_at + greatest(s.slack, interval '1 min') < compute_now()
    AND (k.until_at IS NULL OR k.until_at > compute_now())
UNION ALL
SELECT format('node %s', n.name), 'it takes no work, and nothing holds it'
FROM nodes n
WHERE NOT n.eligible AND NOT EXISTS (SELECT FROM holds h WHERE h.node_id = n.id AND h.gpu_id IS NULL AND h.closed_at IS NULL)
