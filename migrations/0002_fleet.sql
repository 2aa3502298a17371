-- Who is billed, where work runs, and what takes no new work.

CREATE TABLE tenants (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$')
);
INSERT INTO tenants (name) VALUES ('default');

CREATE TABLE pools (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    is_default boolean NOT NULL DEFAULT false,
    time_limit_max_s bigint CHECK (time_limit_max_s > 0),
    time_limit_default_s bigint CHECK (time_limit_default_s > 0),
    mem_per_cpu_default_mib bigint NOT NULL DEFAULT 1024 CHECK (mem_per_cpu_default_mib > 0),
    version bigint NOT NULL DEFAULT 1
);
CREATE UNIQUE INDEX pools_one_default ON pools (is_default) WHERE is_default;

CREATE TABLE nodes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,253}$'),
    pool_id int NOT NULL REFERENCES pools,
    -- The session that owns the node now; routing and liveness writes carry it in their WHERE.
    session_epoch bigint NOT NULL DEFAULT 0,
    connection text NOT NULL DEFAULT 'disconnected' CHECK (connection IN ('connected', 'disconnected')),
    last_seen_at timestamptz,
    agent_version text,
    boot_id text,
    journal_id text,
    cgroup_mode text CHECK (cgroup_mode IN ('v1', 'v2', 'hybrid')),
    -- Derived from holds, and what a placement locks FOR SHARE: a hold and a placement are ordered by this row.
    eligible boolean NOT NULL DEFAULT true,
    version bigint NOT NULL DEFAULT 1
);

-- Amounts that can be divided: CPUs and MiB of memory. allocated is what is active now; the CHECK is the backstop behind
-- the planner and the guarded updates.
CREATE TABLE node_resources (
    node_id bigint NOT NULL REFERENCES nodes,
    resource text NOT NULL CHECK (resource IN ('cpus', 'mem_mib')),
    allocatable bigint NOT NULL CHECK (allocatable >= 0),
    ratio numeric NOT NULL DEFAULT 1 CHECK (ratio >= 1),
    allocated bigint NOT NULL DEFAULT 0 CHECK (allocated >= 0),
    PRIMARY KEY (node_id, resource)
) WITH (fillfactor = 50);

CREATE TABLE gpus (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uuid text NOT NULL UNIQUE,
    node_id bigint NOT NULL REFERENCES nodes,
    index int NOT NULL,
    model text NOT NULL,
    mem_mib bigint NOT NULL CHECK (mem_mib >= 0),
    mode text NOT NULL DEFAULT 'whole' CHECK (mode IN ('whole', 'mig', 'timeslice', 'mps')),
    slots int NOT NULL DEFAULT 1 CHECK (slots >= 1),
    declared boolean NOT NULL,
    -- Whether the node reported it in its last session.
    present boolean NOT NULL DEFAULT true,
    eligible boolean NOT NULL DEFAULT true,
    version bigint NOT NULL DEFAULT 1
);
CREATE INDEX gpus_of_node ON gpus (node_id);

-- Why a node or GPU takes no new work: rows with owners, so that two tools do not lift each other's.
CREATE TABLE holds (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id bigint NOT NULL REFERENCES nodes,
    gpu_id bigint REFERENCES gpus,
    kind text NOT NULL CHECK (kind IN ('drain', 'cordon', 'taint', 'unreachable', 'quarantine', 'maintenance')),
    owner text NOT NULL,
    reason text NOT NULL CHECK (reason <> ''),
    opened_at timestamptz NOT NULL,
    closed_at timestamptz CHECK (closed_at >= opened_at),
    closed_by text,
    CHECK ((closed_at IS NULL) = (closed_by IS NULL))
);
CREATE INDEX holds_open ON holds (node_id) WHERE closed_at IS NULL;
