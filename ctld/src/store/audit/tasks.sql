-- Every task of a job is waiting, live once, cancelled or has had its attempts, and its job counts and says just that.
SELECT format('job %s', j.id) AS what, format('it counts %s live attempts, and has %s', j.active, count(t.id)) AS detail
FROM jobs j LEFT JOIN attempts t ON t.job_id = j.id AND t.ended_at IS NULL
GROUP BY j.id HAVING j.active <> count(t.id)
UNION ALL
SELECT format('job %s task %s', job_id, task), format('it has %s live attempts', count(*))
FROM attempts WHERE ended_at IS NULL GROUP BY job_id, task HAVING count(*) > 1
UNION ALL
SELECT format('job %s task %s', t.job_id, t.task), 'it waits, and has a live attempt'
FROM attempts t JOIN jobs j ON j.id = t.job_id WHERE t.ended_at IS NULL AND j.pending @> t.task
UNION ALL
SELECT format('job %s task %s', t.job_id, t.task), format('it has an attempt, and the job has tasks %s', j.indices)
FROM attempts t JOIN jobs j ON j.id = t.job_id WHERE NOT j.indices @> t.task
UNION ALL
SELECT format('job %s', j.id), format('tasks %s are neither waiting nor cancelled nor were they ever placed', lost.tasks)
FROM jobs j
LEFT JOIN (SELECT job_id, range_agg(int4range(task, task + 1)) AS tasks FROM attempts GROUP BY job_id) t ON t.job_id = j.id
CROSS JOIN LATERAL (SELECT j.indices - j.pending - j.cancelled - coalesce(t.tasks, '{}') AS tasks) lost
WHERE NOT isempty(lost.tasks)
UNION ALL
SELECT format('job %s task %s', job_id, task), format('its attempts are numbered to %s, and there are %s', max(number), count(*))
FROM attempts GROUP BY job_id, task HAVING max(number) <> count(*)
UNION ALL
SELECT format('job %s', id), format('it is %s with %s waiting, %s live, ended at %s', state, pending, active, ended_at)
FROM jobs
WHERE (ended_at IS NOT NULL) IS DISTINCT FROM (isempty(pending) AND active = 0)
    OR state IN ('pending', 'running') IS DISTINCT FROM (ended_at IS NULL)
    OR (state = 'running') IS DISTINCT FROM (active > 0)
