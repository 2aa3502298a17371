-- One-shot acts on nodes (signals now): kept until the node has answered, however often session and controller change.
CREATE TABLE commands (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id bigint NOT NULL REFERENCES nodes,
    -- What the node knows it by for ever: one that it has seen is answered from its journal, not carried out again.
    idempotency_key text NOT NULL CHECK (idempotency_key <> ''),
    act jsonb NOT NULL,
    -- Whether it may be carried out a second time when a node no longer knows whether it has been.
    retry_safe boolean NOT NULL,
    state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sent', 'done', 'failed')),
    asked_by text NOT NULL,
    asked_at timestamptz NOT NULL,
    -- Not sent any more after this: a signal that comes much too late does more harm than none.
    expires_at timestamptz NOT NULL,
    -- The session in which it was sent last.
    sent_epoch bigint,
    ended_at timestamptz,
    error text,
    UNIQUE (node_id, idempotency_key),
    CHECK ((ended_at IS NOT NULL) = (state IN ('done', 'failed'))),
    CHECK ((error IS NOT NULL) = (state = 'failed')),
    CHECK (state <> 'sent' OR sent_epoch IS NOT NULL)
) WITH (fillfactor = 70);
CREATE INDEX commands_open ON commands (node_id, id) WHERE state IN ('pending', 'sent');

-- The last generation of the target that the node has applied: epoch of its session times 2^32, and a count.
ALTER TABLE nodes ADD COLUMN observed_generation bigint NOT NULL DEFAULT 0;
