-- Every booking fits its GPU's mode, slots and layout over the whole of its time.
SELECT format('GPU %s', g.uuid) AS what,
    format('booking %s of %s during %s: the GPU is in a mode for it during %s', b.id, b.atom, b.during, coalesce(m.fits, '{}')) AS detail
FROM device_bookings b
JOIN gpus g ON g.id = b.gpu_id
CROSS JOIN LATERAL (
    SELECT range_agg(m.during) AS fits FROM gpu_modes m
    WHERE m.gpu_id = b.gpu_id AND CASE split_part(b.atom, ':', 1)
        WHEN 'gpu' THEN m.mode = 'whole'
        WHEN 'mig' THEN m.mode = 'mig' AND (m.layout IS NULL OR b.atom = ANY (m.layout))
        WHEN 'slot' THEN m.mode = 'timeslice' AND m.slots = split_part(b.atom, '/', 2)::int
        WHEN 'mps' THEN m.mode = 'mps' AND m.slots = split_part(b.atom, '/', 2)::int
        ELSE false
    END
) m
WHERE b.kind <> 'mode_change' AND NOT coalesce(m.fits @> b.during, false)
