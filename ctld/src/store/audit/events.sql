-- What ended was told: the last that is told of a job that has ended is its end, as far back as events are kept, and no job that
-- has not ended is told to have.
WITH told AS (
    SELECT DISTINCT ON (subject) subject, type FROM outbox WHERE type IN ('job.ended', 'job.requeued')
    ORDER BY subject, txid DESC, seq DESC
), since AS (
    SELECT time FROM outbox ORDER BY txid, seq LIMIT 1
)
SELECT format('job %s', j.id) AS what, format('it ended at %s, and no event says so', j.ended_at) AS detail
FROM jobs j JOIN since s ON j.ended_at > s.time
WHERE NOT EXISTS (SELECT FROM told t WHERE t.subject = 'job/' || j.id AND t.type = 'job.ended')
UNION ALL
SELECT t.subject, 'it is told to have ended, and has not'
FROM told t WHERE t.type = 'job.ended'
    AND NOT EXISTS (SELECT FROM jobs j WHERE t.subject = 'job/' || j.id AND j.ended_at IS NOT NULL)
