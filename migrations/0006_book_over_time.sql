-- The book over time: bookings of reservations and of mode changes beside those of allocations, disk beside CPUs and memory,
-- and what an atom may cover.

-- A tenant's claim on capacity for a time of its own choosing, in which jobs of those it admits run.
CREATE TABLE reservations (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id int NOT NULL REFERENCES tenants,
    pool_id int NOT NULL REFERENCES pools,
    name text NOT NULL CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    owner text NOT NULL,
    -- Who made it: the owner, or an operator for them.
    author text NOT NULL,
    -- Who may run jobs in it, besides its owner: users and accounts by name.
    users text[] NOT NULL DEFAULT '{}',
    accounts text[] NOT NULL DEFAULT '{}',
    during tstzrange NOT NULL CHECK (NOT isempty(during) AND NOT lower_inf(during) AND NOT upper_inf(during)
        AND isfinite(lower(during)) AND isfinite(upper(during))),
    state text NOT NULL CHECK (state IN ('booked', 'running', 'completed', 'cancelled')),
    -- One of a series: the series is named by its first reservation's id.
    series_id bigint REFERENCES reservations,
    occurrence int NOT NULL DEFAULT 1 CHECK (occurrence >= 1),
    -- What was asked for, as it was asked.
    request jsonb NOT NULL,
    -- What it is charged while it has not ended: resource to amount.
    charge jsonb NOT NULL DEFAULT '{}',
    -- Why it cannot have, or may not get, what it booked: {reason, message, checks}.
    condition jsonb,
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    version bigint NOT NULL DEFAULT 1,
    CHECK ((ended_at IS NULL) = (state IN ('booked', 'running')))
);
-- A name is used once at a time, by one series.
CREATE UNIQUE INDEX reservations_named ON reservations (name, occurrence) WHERE ended_at IS NULL;
CREATE INDEX reservations_live ON reservations (upper(during)) WHERE ended_at IS NULL;

-- A change of a GPU's mode or layout: books the whole GPU for its window, and holds from the window's start on.
CREATE TABLE gpu_changes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    gpu_id bigint NOT NULL REFERENCES gpus,
    mode text NOT NULL CHECK (mode IN ('whole', 'mig', 'timeslice', 'mps')),
    slots int NOT NULL CHECK (slots >= 1),
    -- The fixed instances of a MIG GPU as atoms; NULL: made on demand.
    layout text[],
    during tstzrange NOT NULL CHECK (NOT isempty(during) AND isfinite(lower(during)) AND isfinite(upper(during))),
    state text NOT NULL CHECK (state IN ('booked', 'done', 'cancelled', 'failed')),
    author text NOT NULL,
    created_at timestamptz NOT NULL,
    ended_at timestamptz,
    CHECK ((ended_at IS NULL) = (state = 'booked')),
    CHECK (layout IS NULL OR mode = 'mig')
);
CREATE INDEX gpu_changes_live ON gpu_changes (gpu_id) WHERE ended_at IS NULL;

ALTER TABLE gpu_modes ADD COLUMN layout text[], ADD CHECK (layout IS NULL OR mode = 'mig');
ALTER TABLE gpus ADD COLUMN layout text[], ADD CHECK (layout IS NULL OR mode = 'mig');

-- The legal MIG placements of each model, from ctld-core's one table; the controller fills it at its start.
CREATE TABLE mig_placements (
    model text NOT NULL,
    profile text NOT NULL,
    start int NOT NULL CHECK (start >= 0),
    size int NOT NULL CHECK (size >= 1),
    -- 5040ths of a GPU that an instance counts as.
    gpu_units bigint NOT NULL CHECK (gpu_units >= 1),
    PRIMARY KEY (model, profile, start)
);

ALTER TABLE allocations
    ADD COLUMN disk_mib bigint NOT NULL DEFAULT 0 CHECK (disk_mib >= 0),
    -- The reservation it runs in, whose booking it was carved from.
    ADD COLUMN reservation_id bigint REFERENCES reservations;
ALTER TABLE jobs
    ADD COLUMN disk_mib bigint NOT NULL DEFAULT 0 CHECK (disk_mib >= 0),
    ADD COLUMN reservation_id bigint REFERENCES reservations;
CREATE INDEX jobs_of_reservation ON jobs (reservation_id, priority DESC, id)
    WHERE reservation_id IS NOT NULL AND NOT isempty(pending);

ALTER TABLE device_bookings
    ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ALTER COLUMN allocation_id DROP NOT NULL,
    -- Of a reservation itself, or of the allocation that was carved from it.
    ADD COLUMN reservation_id bigint REFERENCES reservations,
    ADD COLUMN change_id bigint REFERENCES gpu_changes,
    ADD CONSTRAINT device_bookings_have_one_owner CHECK (
        (kind = 'allocation') = (allocation_id IS NOT NULL)
        AND (kind = 'mode_change') = (change_id IS NOT NULL)
        AND (kind <> 'reservation' OR reservation_id IS NOT NULL)),
    -- The span is the one that the atom covers; that a MIG start is legal for its profile is the guarded insert's.
    ADD CONSTRAINT device_bookings_span_is_the_atoms CHECK (CASE
        WHEN atom = 'gpu' THEN span = int4range(NULL, NULL)
        WHEN atom ~ '^(slot|mps):[0-9]{1,3}/[0-9]{1,3}$' THEN
            split_part(split_part(atom, ':', 2), '/', 1)::int < split_part(atom, '/', 2)::int
            AND span = int4range(split_part(split_part(atom, ':', 2), '/', 1)::int,
                split_part(split_part(atom, ':', 2), '/', 1)::int + 1)
        WHEN atom ~ '^mig:[0-9][0-9a-z.+-]*@[0-9]{1,2}$' THEN
            -- An instance with the GPU's media engines books those too, beyond every memory slice.
            NOT upper_inf(span) AND (lower(span) = split_part(atom, '@', 2)::int
                OR atom LIKE '%+me@%' AND span = int4range(8, 9))
        ELSE false
    END);
CREATE INDEX device_bookings_by_start ON device_bookings (gpu_id, lower(during));
CREATE INDEX device_bookings_of_reservation ON device_bookings (reservation_id) WHERE reservation_id IS NOT NULL;
CREATE INDEX device_bookings_by_end ON device_bookings (upper(during)) WHERE NOT upper_inf(during);

ALTER TABLE node_bookings
    DROP CONSTRAINT node_bookings_pkey,
    ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ALTER COLUMN allocation_id DROP NOT NULL,
    ADD CONSTRAINT node_bookings_one_an_allocation UNIQUE (allocation_id),
    ADD COLUMN disk_mib bigint NOT NULL DEFAULT 0 CHECK (disk_mib >= 0),
    -- Of a reservation itself, or of an allocation inside it: that one takes from the reservation's amounts, not the node's.
    ADD COLUMN reservation_id bigint REFERENCES reservations,
    ADD CONSTRAINT node_bookings_have_one_owner CHECK (allocation_id IS NOT NULL OR reservation_id IS NOT NULL);
CREATE INDEX node_bookings_by_start ON node_bookings (node_id, lower(during));
CREATE INDEX node_bookings_of_reservation ON node_bookings (reservation_id) WHERE reservation_id IS NOT NULL;
CREATE INDEX node_bookings_by_end ON node_bookings (upper(during)) WHERE NOT upper_inf(during);
DROP INDEX node_bookings_of_node;

ALTER TABLE device_bookings_history
    ALTER COLUMN allocation_id DROP NOT NULL,
    ADD COLUMN reservation_id bigint,
    ADD COLUMN change_id bigint;
ALTER TABLE node_bookings_history
    ALTER COLUMN allocation_id DROP NOT NULL,
    ADD COLUMN disk_mib bigint NOT NULL DEFAULT 0,
    ADD COLUMN reservation_id bigint;

ALTER TABLE node_resources DROP CONSTRAINT node_resources_resource_check,
    ADD CONSTRAINT node_resources_resource_check CHECK (resource IN ('cpus', 'mem_mib', 'disk_mib'));
