-- Where events are sent by themselves: webhooks, each from a place of its own, delivered by who holds its lease.
CREATE TABLE event_sinks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    url text NOT NULL CHECK (url ~ '^https?://'),
    -- The key of its signatures, whsec_…: shown once, when it is made.
    secret text NOT NULL CHECK (secret ~ '^whsec_[A-Za-z0-9+/]+=*$'),
    -- Only this tenant's events; NULL: everybody's, and the fleet's.
    tenant_id int REFERENCES tenants,
    -- Only these types, or families of them; none: all.
    kinds text[] NOT NULL DEFAULT '{}',
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused')),
    -- Why it is paused, or what it has missed.
    note text,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT compute_now(),
    version bigint NOT NULL DEFAULT 1
);

-- Up to where each sink has been served: everything up to there was delivered or stands in event_deliveries.
CREATE TABLE outbox_cursors (
    sink_id bigint PRIMARY KEY REFERENCES event_sinks ON DELETE CASCADE,
    txid xid8 NOT NULL,
    seq bigint NOT NULL,
    saved_at timestamptz NOT NULL DEFAULT compute_now()
) WITH (fillfactor = 50);

-- Events that a sink did not take at once: to be tried again, or given up (dead letters). A copy of the event, since the outbox
-- may be pruned meanwhile. Those of one subject wait for the first of it, so that their order is kept.
CREATE TABLE event_deliveries (
    sink_id bigint NOT NULL REFERENCES event_sinks ON DELETE CASCADE,
    txid xid8 NOT NULL,
    seq bigint NOT NULL,
    subject text NOT NULL,
    event jsonb NOT NULL,
    state text NOT NULL CHECK (state IN ('waiting', 'dead')),
    attempts int NOT NULL CHECK (attempts >= 0),
    next_at timestamptz NOT NULL,
    error text,
    changed_at timestamptz NOT NULL DEFAULT compute_now(),
    PRIMARY KEY (sink_id, txid, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX event_deliveries_waiting ON event_deliveries (sink_id, subject, txid, seq) WHERE state = 'waiting';

-- Pruning goes by the primary key, whose order is nearly that of time.
DROP INDEX outbox_by_time;
