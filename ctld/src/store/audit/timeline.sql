-- A GPU is in exactly one mode at every instant from its first report on, and its row says the mode of now, unless a change
-- is under way or due within the last minute.
SELECT format('GPU %s', g.uuid) AS what, 'it has no mode' AS detail
FROM gpus g WHERE NOT EXISTS (SELECT FROM gpu_modes m WHERE m.gpu_id = g.id)
UNION ALL
SELECT format('GPU %s', g.uuid), CASE
        WHEN m.next_at IS NULL THEN format('no mode from %s on', m.until_at)
        ELSE format('mode %s until %s, and the next from %s on', m.mode, coalesce(m.until_at, 'infinity'), m.next_at)
    END
FROM (SELECT gpu_id, mode, upper(during) AS until_at, lead(lower(during)) OVER (PARTITION BY gpu_id ORDER BY lower(during)) AS next_at
    FROM gpu_modes) m
JOIN gpus g ON g.id = m.gpu_id
WHERE m.until_at IS DISTINCT FROM m.next_at
UNION ALL
SELECT format('GPU %s', g.uuid), format('its row says %s of %s, its timeline %s of %s', g.mode, g.slots, m.mode, m.slots)
FROM gpus g JOIN gpu_modes m ON m.gpu_id = g.id AND m.during @> compute_now()
WHERE (g.mode, g.slots) IS DISTINCT FROM (m.mode, m.slots) AND lower(m.during) < compute_now() - interval '1 min'
    AND NOT EXISTS (SELECT FROM gpu_changes c WHERE c.gpu_id = g.id AND c.ended_at IS NULL AND lower(c.during) <= compute_now())
