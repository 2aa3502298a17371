-- Disconnected is not dead: what becomes of a node that has no session, and when. Nothing here releases anything but `lost`, which
-- only a pool of hired machines may come to by itself, or a person says.
ALTER TABLE nodes
    -- A node that has joined and never opened a session counts from then.
    ADD COLUMN disconnected_at timestamptz DEFAULT compute_now(),
    -- When it counts as unreachable if it has opened no session by then.
    ADD COLUMN unreachable_at timestamptz DEFAULT compute_now() + interval '40 seconds',
    ADD COLUMN lost_at timestamptz,
    -- Why it was given up, and by whom.
    ADD COLUMN lost_reason text,
    DROP CONSTRAINT nodes_connection_check;
UPDATE nodes SET disconnected_at = NULL, unreachable_at = NULL WHERE connection = 'connected';
ALTER TABLE nodes
    ADD CHECK (connection IN ('connected', 'disconnected', 'unreachable', 'lost')),
    ADD CHECK ((connection = 'connected') = (disconnected_at IS NULL)),
    ADD CHECK ((disconnected_at IS NULL) = (unreachable_at IS NULL)),
    ADD CHECK ((connection = 'lost') = (lost_at IS NOT NULL)),
    ADD CHECK ((lost_at IS NULL) = (lost_reason IS NULL));
ALTER TABLE nodes SET (fillfactor = 70);
CREATE INDEX nodes_away ON nodes (unreachable_at) WHERE connection <> 'connected';

-- What its machines are, and after how long without a session the jobs on one are given up. Bare metal is never given up by
-- itself: what runs there may still be running.
ALTER TABLE pools
    ADD COLUMN kind text NOT NULL DEFAULT 'bare-metal' CHECK (kind IN ('bare-metal', 'provider', 'vps-host')),
    ADD COLUMN lost_after_s bigint CHECK (lost_after_s > 0),
    ADD CHECK (lost_after_s IS NULL OR kind <> 'bare-metal');

-- When the nodes were last looked after: a gap says that the database, or every controller, was away, and that nodes which seem
-- to be away had nobody to speak to.
CREATE TABLE liveness (
    id int PRIMARY KEY CHECK (id = 1),
    looked_at timestamptz NOT NULL
);
