-- Every span is the one its atom covers, MIG instances only where their profile may be placed on a GPU of that model, and an
-- instance with media engines has booked those too.
WITH booked AS (
    SELECT b.*, g.uuid, g.model, split_part(b.atom, ':', 1) AS family, split_part(split_part(b.atom, ':', 2), '@', 1) AS profile
    FROM device_bookings b JOIN gpus g ON g.id = b.gpu_id
), illegal AS (
    SELECT b.* FROM booked b
    WHERE NOT CASE b.family
        WHEN 'gpu' THEN lower_inf(b.span) AND upper_inf(b.span)
        WHEN 'mig' THEN b.span = int4range(8, 9) AND b.atom LIKE '%+me%'
            OR NOT EXISTS (SELECT FROM mig_placements)
            OR EXISTS (SELECT FROM mig_placements p
                -- A GPU whose model the table does not name may be any of them.
                WHERE (p.model = b.model OR NOT EXISTS (SELECT FROM mig_placements q WHERE q.model = b.model))
                    AND p.profile = b.profile AND p.start = split_part(b.atom, '@', 2)::int
                    AND b.span = int4range(p.start, p.start + p.size))
        WHEN 'slot' THEN upper(b.span) = lower(b.span) + 1 AND lower(b.span) < split_part(b.atom, '/', 2)::int
        WHEN 'mps' THEN upper(b.span) = lower(b.span) + 1 AND lower(b.span) < split_part(b.atom, '/', 2)::int
        ELSE false
    END
)
SELECT format('GPU %s', uuid) AS what, format('booking %s: %s does not cover %s on a %s', id, atom, span, model) AS detail
FROM illegal
UNION ALL
SELECT format('GPU %s', b.uuid), format('booking %s: %s has not booked the media engines', b.id, b.atom)
FROM booked b
WHERE b.family = 'mig' AND b.profile LIKE '%+me%' AND b.span <> int4range(8, 9)
    AND NOT EXISTS (SELECT FROM device_bookings e WHERE e.gpu_id = b.gpu_id AND e.span = int4range(8, 9) AND e.atom = b.atom
        AND e.during = b.during)
