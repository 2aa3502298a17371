-- The book: who has which part of which GPU, and how much of which node, when. The database refuses overlapping claims
-- whatever the planner, the API or a person at psql does. Ranges are half-open; an open end is an unbounded range, never
-- 'infinity'. Integer keys: with text keys PostgreSQL inserts half as many bookings a second.

CREATE TABLE gpu_modes (
    gpu_id bigint NOT NULL REFERENCES gpus,
    mode text NOT NULL CHECK (mode IN ('whole', 'mig', 'timeslice', 'mps')),
    slots int NOT NULL CHECK (slots >= 1),
    during tstzrange NOT NULL CHECK (NOT isempty(during) AND lower(during) IS NOT NULL AND isfinite(lower(during))
        AND (upper_inf(during) OR isfinite(upper(during)))),
    EXCLUDE USING gist (gpu_id WITH =, during WITH &&)
);

CREATE TABLE device_bookings (
    gpu_id bigint NOT NULL REFERENCES gpus,
    -- The part of the GPU: whole = every integer; MIG = memory slices [start, start + size); slot k = [k, k + 1).
    span int4range NOT NULL CHECK (NOT isempty(span)),
    during tstzrange NOT NULL CHECK (NOT isempty(during) AND lower(during) IS NOT NULL AND isfinite(lower(during))
        AND (upper_inf(during) OR isfinite(upper(during)))),
    allocation_id bigint NOT NULL REFERENCES allocations,
    atom text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('allocation', 'mode_change', 'reservation')),
    EXCLUDE USING gist (gpu_id WITH =, span WITH &&, during WITH &&)
);
CREATE INDEX device_bookings_of_allocation ON device_bookings (allocation_id);

CREATE TABLE node_bookings (
    allocation_id bigint PRIMARY KEY REFERENCES allocations,
    node_id bigint NOT NULL REFERENCES nodes,
    cpus int NOT NULL CHECK (cpus >= 0),
    mem_mib bigint NOT NULL CHECK (mem_mib >= 0),
    during tstzrange NOT NULL CHECK (NOT isempty(during) AND lower(during) IS NOT NULL AND isfinite(lower(during))
        AND (upper_inf(during) OR isfinite(upper(during))))
);
CREATE INDEX node_bookings_of_node ON node_bookings (node_id);

-- Past bookings move here, so that the live indexes stay small.
CREATE TABLE device_bookings_history (LIKE device_bookings INCLUDING CONSTRAINTS);
CREATE INDEX device_bookings_history_of_allocation ON device_bookings_history (allocation_id);
CREATE TABLE node_bookings_history (LIKE node_bookings INCLUDING CONSTRAINTS);
CREATE INDEX node_bookings_history_of_allocation ON node_bookings_history (allocation_id);

ALTER TABLE node_resources ADD CONSTRAINT node_resources_within
    CHECK (allocated <= floor(allocatable * ratio));
