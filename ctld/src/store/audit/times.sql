-- What happened, happened in order: placed, started, released, ended.
SELECT format('attempt %s', id) AS what,
    format('placed at %s, started at %s, ended at %s', placed_at, started_at, ended_at) AS detail
FROM attempts WHERE started_at < placed_at OR ended_at < placed_at OR ended_at < started_at
UNION ALL
SELECT format('allocation %s', a.id), format('started at %s, released at %s', a.started_at, a.released_at)
FROM allocations a WHERE a.released_at < a.started_at
UNION ALL
SELECT format('reservation %s', id), format('it is %s until %s', state, upper(during))
FROM reservations WHERE state = 'running' AND lower(during) > compute_now()
UNION ALL
SELECT format('job %s', id), format('submitted at %s, ended at %s', submitted_at, ended_at)
FROM jobs WHERE ended_at < submitted_at
