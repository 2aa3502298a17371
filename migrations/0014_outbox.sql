-- What happened, told to whoever asks afterwards: an event is a row written in the transaction of the change it describes, so
-- that one exists if and only if the other does.
--
-- Triggers write them, so that no act can forget one and a person at psql cannot either. They are row-level, with a WHEN that
-- compares states: most updates of jobs, nodes and quotas are none (the queue's conditions, amounts, signs of life), and then
-- cost next to nothing. Measured on PostgreSQL 15 and two cores: 7 us a submission in batches of 100, where a statement-level
-- trigger over its transition table costs the same; 20 us a job's end.
CREATE TABLE outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    -- A reader takes rows whose txid is below every transaction that still runs, in the order of (txid, seq), so nothing can
    -- appear behind it. It is the writer's own number, or the newest number that had ended by then: a transaction that began
    -- early and waited for another's lock writes after it, and must not be read before it. Its own number alone would sort its
    -- event first.
    txid xid8 NOT NULL DEFAULT greatest(pg_current_xact_id(),
        ((pg_snapshot_xmax(pg_current_snapshot())::text)::bigint - 1)::text::xid8),
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    type text NOT NULL,
    -- Whose it is; NULL for the fleet's. No foreign key: its check would cost as much as the row, and triggers copy it.
    tenant_id int,
    -- The user who may see it besides operators.
    owner text,
    -- What it is about, KIND/NAME: events of one subject are told in the order in which they happened.
    subject text NOT NULL,
    data jsonb NOT NULL,
    time timestamptz NOT NULL DEFAULT compute_now(),
    PRIMARY KEY (txid, seq)
) WITH (
    -- Rows come and go and are never changed: what is deleted is given back soon, and new rows are visible to index scans.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
-- Retention looks for the oldest.
CREATE INDEX outbox_by_time ON outbox USING brin (time);

-- How far events have been pruned: a reader that asks from before this has missed some.
CREATE TABLE outbox_pruned (
    id int PRIMARY KEY CHECK (id = 1),
    txid xid8 NOT NULL,
    seq bigint NOT NULL
);
INSERT INTO outbox_pruned VALUES (1, '0', 0);

-- Jobs ------------------------------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_job_submitted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox (type, tenant_id, owner, subject, data)
    VALUES ('job.submitted', NEW.tenant_id, NEW.user_name, 'job/' || NEW.id, jsonb_build_object('job', NEW.id, 'name', NEW.name,
        'user', NEW.user_name, 'account', NEW.account, 'tasks', CASE WHEN NEW.is_array THEN NEW.indices::text END,
        'state', NEW.state, 'hold', NEW.hold, 'submitted_at', NEW.submitted_at));
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_submitted AFTER INSERT ON jobs FOR EACH ROW EXECUTE FUNCTION outbox_job_submitted();

-- How the last attempt of a job's task ended, and where it ran.
CREATE FUNCTION outbox_attempt(t attempts) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('attempt', t.number, 'exit_code', t.exit_code, 'signal', t.signal,
        'reason', t.condition->>'reason', 'message', t.condition->>'message', 'started_at', t.started_at, 'ended_at', t.ended_at,
        'nodes', (SELECT coalesce(jsonb_agg(n.name ORDER BY a.position), '[]') FROM allocations a JOIN nodes n ON n.id = a.node_id
            WHERE a.attempt_id = t.id))
$$;

CREATE FUNCTION outbox_job_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    about jsonb := jsonb_build_object('job', NEW.id, 'name', NEW.name, 'user', NEW.user_name, 'state', NEW.state,
        'version', NEW.version);
    last attempts;
BEGIN
    IF NOT NEW.pending <@ OLD.pending THEN
        IF NEW.is_array THEN
            about := about || jsonb_build_object('tasks', (NEW.pending - OLD.pending)::text);
        ELSE
            SELECT * INTO last FROM attempts t WHERE t.job_id = NEW.id ORDER BY t.number DESC LIMIT 1;
            about := about || outbox_attempt(last);
        END IF;
        INSERT INTO outbox (type, tenant_id, owner, subject, data)
        VALUES ('job.requeued', NEW.tenant_id, NEW.user_name, 'job/' || NEW.id, about);
    ELSIF OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL THEN
        about := about || jsonb_build_object('reason', NEW.condition->>'reason', 'message', NEW.condition->>'message',
            'ended_at', NEW.ended_at);
        SELECT * INTO last FROM attempts t WHERE t.job_id = NEW.id ORDER BY t.number DESC LIMIT 1;
        IF FOUND THEN
            about := outbox_attempt(last) || about;
        END IF;
        INSERT INTO outbox (type, tenant_id, owner, subject, data)
        VALUES ('job.ended', NEW.tenant_id, NEW.user_name, 'job/' || NEW.id, about);
    ELSE
        INSERT INTO outbox (type, tenant_id, owner, subject, data)
        VALUES (
            CASE WHEN OLD.hold IS NOT DISTINCT FROM NEW.hold THEN 'job.updated' WHEN NEW.hold IS NULL THEN 'job.released'
                ELSE 'job.held' END,
            NEW.tenant_id, NEW.user_name, 'job/' || NEW.id, about || jsonb_build_object('hold', NEW.hold,
                'time_limit_s', NEW.time_limit_s, 'priority', NEW.priority, 'nice', NEW.nice, 'begin_at', NEW.begin_at,
                'throttle', NEW.throttle));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_changed AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NOT NEW.pending <@ OLD.pending OR (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL AND NOT NEW.is_array)
        OR OLD.hold IS DISTINCT FROM NEW.hold OR OLD.time_limit_s IS DISTINCT FROM NEW.time_limit_s
        OR OLD.priority <> NEW.priority OR OLD.nice <> NEW.nice OR OLD.begin_at IS DISTINCT FROM NEW.begin_at
        OR OLD.throttle IS DISTINCT FROM NEW.throttle)
    EXECUTE FUNCTION outbox_job_changed();

-- What an array ends as is summed up after its last task ended, in the same transaction: told at the commit, when it is known.
CREATE FUNCTION outbox_array_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox (type, tenant_id, owner, subject, data)
    SELECT 'job.ended', j.tenant_id, j.user_name, 'job/' || j.id, jsonb_build_object('job', j.id, 'name', j.name,
        'user', j.user_name, 'tasks', j.indices::text, 'state', j.state, 'version', j.version,
        'reason', j.condition->>'reason', 'message', j.condition->>'message', 'ended_at', j.ended_at)
    FROM jobs j WHERE j.id = NEW.id AND j.ended_at IS NOT NULL;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER outbox_array_ended AFTER UPDATE ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.is_array AND OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION outbox_array_ended();

CREATE FUNCTION outbox_attempt_started() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox (type, tenant_id, owner, subject, data)
    SELECT 'job.started', j.tenant_id, j.user_name, 'job/' || j.id, jsonb_build_object('job', j.id, 'name', j.name,
        'user', j.user_name, 'task', CASE WHEN j.is_array THEN NEW.task END, 'attempt', NEW.number, 'started_at', NEW.started_at,
        'nodes', (SELECT jsonb_agg(n.name ORDER BY a.position) FROM allocations a JOIN nodes n ON n.id = a.node_id
            WHERE a.attempt_id = NEW.id))
    FROM jobs j WHERE j.id = NEW.job_id;
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_started AFTER UPDATE ON attempts FOR EACH ROW
    WHEN (OLD.started_at IS NULL AND NEW.started_at IS NOT NULL) EXECUTE FUNCTION outbox_attempt_started();

-- One task of an array ended; a job that is no array ends with its only one, which its own event tells.
CREATE FUNCTION outbox_attempt_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox (type, tenant_id, owner, subject, data)
    SELECT 'job.task_ended', j.tenant_id, j.user_name, 'job/' || j.id, outbox_attempt(NEW) || jsonb_build_object('job', j.id,
        'name', j.name, 'user', j.user_name, 'task', NEW.task, 'state', NEW.state)
    FROM jobs j WHERE j.id = NEW.job_id AND j.is_array;
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_ended AFTER UPDATE ON attempts FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION outbox_attempt_ended();

-- The fleet -------------------------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_node_connection() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox (type, subject, data)
    VALUES ('node.' || NEW.connection, 'node/' || NEW.name, jsonb_build_object('node', NEW.name,
        'was', CASE WHEN TG_OP = 'UPDATE' THEN OLD.connection END, 'last_seen_at', NEW.last_seen_at, 'reason', NEW.lost_reason));
    RETURN NULL;
END $$;
-- That it is unreachable is a hold, and told as such.
CREATE TRIGGER outbox_connection AFTER UPDATE ON nodes FOR EACH ROW
    WHEN (OLD.connection <> NEW.connection AND NEW.connection <> 'unreachable') EXECUTE FUNCTION outbox_node_connection();
CREATE TRIGGER outbox_joined AFTER INSERT ON nodes FOR EACH ROW
    WHEN (NEW.connection = 'connected') EXECUTE FUNCTION outbox_node_connection();

CREATE FUNCTION outbox_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox (type, subject, data)
    SELECT CASE
            WHEN NEW.kind = 'unreachable' AND TG_OP = 'INSERT' THEN 'node.unreachable'
            WHEN NEW.kind = 'unreachable' THEN 'node.reachable'
            WHEN TG_OP = 'INSERT' THEN 'hold.placed'
            ELSE 'hold.lifted' END,
        coalesce('gpu/' || g.uuid, 'node/' || n.name), jsonb_build_object('hold', NEW.id, 'kind', NEW.kind, 'node', n.name,
            'gpu', g.uuid, 'atom', NEW.atom, 'owner', NEW.owner, 'reason', NEW.reason, 'from', lower(NEW.during),
            'until', upper(NEW.during), 'lifted_by', NEW.closed_by)
    FROM nodes n LEFT JOIN gpus g ON g.id = NEW.gpu_id WHERE n.id = NEW.node_id;
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_placed AFTER INSERT ON holds FOR EACH ROW EXECUTE FUNCTION outbox_hold();
CREATE TRIGGER outbox_lifted AFTER UPDATE ON holds FOR EACH ROW
    WHEN (OLD.closed_at IS NULL AND NEW.closed_at IS NOT NULL) EXECUTE FUNCTION outbox_hold();

CREATE FUNCTION outbox_gpu_mode() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox (type, subject, data)
    SELECT 'gpu.mode_changed', 'gpu/' || NEW.uuid, jsonb_build_object('gpu', NEW.uuid, 'node', n.name, 'mode', NEW.mode,
        'slots', NEW.slots, 'layout', NEW.layout, 'was', OLD.mode)
    FROM nodes n WHERE n.id = NEW.node_id;
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_mode AFTER UPDATE ON gpus FOR EACH ROW
    WHEN (OLD.mode <> NEW.mode OR OLD.slots <> NEW.slots OR OLD.layout IS DISTINCT FROM NEW.layout)
    EXECUTE FUNCTION outbox_gpu_mode();

-- Reservations and quotas -----------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_reservation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was text := CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END;
BEGIN
    INSERT INTO outbox (type, tenant_id, owner, subject, data)
    VALUES (
        CASE WHEN was IS NULL THEN 'reservation.created' WHEN was = NEW.state THEN 'reservation.changed'
            WHEN NEW.state = 'running' THEN 'reservation.started' WHEN NEW.state = 'cancelled' THEN 'reservation.cancelled'
            ELSE 'reservation.ended' END,
        NEW.tenant_id, NEW.owner, 'reservation/' || NEW.id, jsonb_build_object('reservation', NEW.id, 'name', NEW.name,
            'owner', NEW.owner, 'state', NEW.state, 'from', lower(NEW.during), 'until', upper(NEW.during),
            'ended_at', NEW.ended_at, 'version', NEW.version));
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_created AFTER INSERT ON reservations FOR EACH ROW EXECUTE FUNCTION outbox_reservation();
CREATE TRIGGER outbox_changed AFTER UPDATE ON reservations FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.during <> NEW.during) EXECUTE FUNCTION outbox_reservation();

CREATE FUNCTION outbox_quota() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox (type, tenant_id, subject, data)
    SELECT 'quota.changed', NEW.tenant_id, 'quota/' || t.name || '/' || NEW.resource, jsonb_build_object('tenant', t.name,
        'resource', NEW.resource, 'max', NEW.max, 'was', CASE WHEN TG_OP = 'UPDATE' THEN OLD.max END, 'used', NEW.used)
    FROM tenants t WHERE t.id = NEW.tenant_id;
    RETURN NULL;
END $$;
CREATE TRIGGER outbox_limited AFTER INSERT ON quota_usage FOR EACH ROW
    WHEN (NEW.max IS NOT NULL) EXECUTE FUNCTION outbox_quota();
CREATE TRIGGER outbox_changed AFTER UPDATE ON quota_usage FOR EACH ROW
    WHEN (OLD.max IS DISTINCT FROM NEW.max) EXECUTE FUNCTION outbox_quota();
