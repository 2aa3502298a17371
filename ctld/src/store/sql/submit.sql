-- Stores a batch of submissions. Returns the ordinal and job id of each whose key was new.
WITH input AS (
    SELECT *
    FROM unnest(
        $1::int[], $2::int[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bigint[], $8::bigint[], $9::int[],
        $10::text[], $11::int[], $12::bigint[], $13::boolean[], $14::boolean[], $15::int[], $16::text[], $17::int[],
        $18::bigint[], $19::int[], $20::bigint[], $21::boolean[], $22::text[], $23::timestamptz[], $24::double precision[],
        $25::boolean[], $26::text[], $27::int[], $28::jsonb[], $29::text[], $30::text[],
        $31::bigint[], $32::bigint[], $33::jsonb[]
    ) AS t (
        ord, tenant_id, user_name, key, body_hash, account, uid, gid, pool_id,
        name, cpus, mem_mib, exclusive, mem_all, gpus, gpu_type, node_count,
        time_limit_s, nice, priority, requeue, hold, begin_at, begin_after_s,
        is_array, indices, throttle, condition, comment, body, disk_mib, reservation_id, charge
    )
), claimed AS (
    INSERT INTO idempotency_keys (tenant_id, identity, key, body_hash, job_id)
    SELECT tenant_id, user_name, key, body_hash, nextval(pg_get_serial_sequence('jobs', 'id'))
    FROM input
    ON CONFLICT DO NOTHING
    RETURNING tenant_id, identity, key, job_id
), fresh AS (
    SELECT claimed.job_id, input.*
    FROM claimed
    JOIN input ON input.tenant_id = claimed.tenant_id AND input.user_name = claimed.identity AND input.key = claimed.key
), stored AS (
    INSERT INTO jobs (id, tenant_id, account, user_name, uid, gid, pool_id, name, cpus, mem_mib, exclusive, mem_all, gpus,
        gpu_type, node_count, time_limit_s, nice, priority, requeue, hold, begin_at, is_array, indices, throttle, pending,
        state, condition, comment, disk_mib, reservation_id, charge, submitted_at)
    SELECT job_id, tenant_id, account, user_name, uid, gid, pool_id, name, cpus, mem_mib, exclusive, mem_all, gpus,
        gpu_type, node_count, time_limit_s, nice, priority, requeue, hold,
        coalesce(begin_at, compute_now() + make_interval(secs => begin_after_s)), is_array, indices::int4multirange, throttle,
        indices::int4multirange, 'pending', condition, comment, disk_mib, reservation_id, charge, compute_now()
    FROM fresh
), scripts AS (
    INSERT INTO job_scripts (job_id, submission)
    SELECT job_id, body FROM fresh
)
SELECT ord AS "ord!", job_id AS "job_id!" FROM fresh
