-- The same over what is past and what is live together: nobody is told, or billed, that two had a part of a GPU at once.
WITH all_bookings AS (
    SELECT gpu_id, span, during, allocation_id, reservation_id FROM device_bookings_history
    UNION ALL
    SELECT gpu_id, span, during, allocation_id, reservation_id FROM device_bookings
), numbered AS (
    SELECT *, row_number() OVER () AS n FROM all_bookings
), parts AS (
    SELECT gpu_id, lower(span) AS part FROM all_bookings WHERE NOT lower_inf(span)
    UNION
    SELECT gpu_id, -1 FROM all_bookings
), swept AS (
    SELECT b.gpu_id, b.allocation_id, b.reservation_id, lower(b.during) AS from_at,
        max(coalesce(upper(b.during), 'infinity')) OVER (PARTITION BY b.gpu_id, p.part ORDER BY lower(b.during), b.n
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS taken_until
    FROM numbered b
    JOIN parts p ON p.gpu_id = b.gpu_id AND (lower_inf(b.span) OR lower(b.span) <= p.part)
        AND (upper_inf(b.span) OR p.part < upper(b.span))
)
SELECT DISTINCT format('GPU %s', g.uuid) AS what,
    format('allocation %s (reservation %s) has it from %s on, another until %s', s.allocation_id, s.reservation_id, s.from_at,
        s.taken_until) AS detail
FROM swept s JOIN gpus g ON g.id = s.gpu_id
WHERE s.from_at < s.taken_until
