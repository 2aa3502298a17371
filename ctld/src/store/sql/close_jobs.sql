-- Attempts ended: their jobs have less active; a requeued task is pending again; a job with nothing pending and nothing
-- active ends, as its last attempt did (an array's state is summarised afterwards, once it has ended).
UPDATE jobs j
SET active = j.active - u.n,
    pending = j.pending + u.requeued,
    state = CASE
        WHEN j.active - u.n > 0 THEN 'running'
        WHEN NOT isempty(j.pending + u.requeued) THEN 'pending'
        ELSE u.state
    END,
    ended_at = CASE WHEN j.active - u.n = 0 AND isempty(j.pending + u.requeued) THEN compute_now() END,
    condition = CASE
        WHEN j.active - u.n = 0 AND isempty(j.pending + u.requeued) THEN u.condition
        WHEN NOT isempty(u.requeued) THEN '{"reason": "Priority", "message": "waits its turn behind others"}'::jsonb
        ELSE j.condition
    END,
    version = j.version + 1
FROM (
    SELECT job_id, count(*)::int AS n,
        coalesce(range_agg(int4range(task, task + 1)) FILTER (WHERE requeue), '{}'::int4multirange) AS requeued,
        (array_agg(state))[1] AS state, (array_agg(condition))[1] AS condition
    FROM unnest($1::bigint[], $2::int[], $3::boolean[], $4::text[], $5::jsonb[]) AS i (job_id, task, requeue, state, condition)
    GROUP BY job_id
) u
WHERE j.id = u.job_id
RETURNING j.id, j.is_array AND j.ended_at IS NOT NULL AS "whole_array!"
