-- At every instant at most one live booking covers any part of a GPU: a sweep over time, part by part, without the
-- constraint's index or operators. Two spans that overlap both hold the greater of their beginnings, so only the parts at
-- which one begins are looked at, and part -1 for whole GPUs.
WITH parts AS (
    SELECT gpu_id, lower(span) AS part FROM device_bookings WHERE NOT lower_inf(span)
    UNION
    SELECT gpu_id, -1 FROM device_bookings
), swept AS (
    SELECT b.id, b.gpu_id, b.atom, lower(b.during) AS from_at,
        max(coalesce(upper(b.during), 'infinity')) OVER (PARTITION BY b.gpu_id, p.part ORDER BY lower(b.during), b.id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS taken_until
    FROM device_bookings b
    JOIN parts p ON p.gpu_id = b.gpu_id AND (lower_inf(b.span) OR lower(b.span) <= p.part)
        AND (upper_inf(b.span) OR p.part < upper(b.span))
)
SELECT DISTINCT format('GPU %s', g.uuid) AS what,
    format('booking %s of %s begins at %s, where another is booked until %s', s.id, s.atom, s.from_at, s.taken_until) AS detail
FROM swept s JOIN gpus g ON g.id = s.gpu_id
WHERE s.from_at < s.taken_until
