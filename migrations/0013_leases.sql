-- Who acts: several equal controllers over one database, each doing what it holds the lease of.
--
-- Rows, not advisory locks: those of a session break under a pooler of transactions, and a row has a time to live and an
-- epoch. A fenced transaction begins by locking its lease FOR SHARE with owner, epoch and expiry; a takeover is an UPDATE,
-- which waits for it and raises the epoch. So whoever lost a lease either ends its transaction before the takeover does, or
-- finds no row and gives up.
CREATE TABLE leases (
    -- gateway:CONTROLLER (its node sessions), pool:ID (planning it), singleton:WHAT.
    name text PRIMARY KEY CHECK (name ~ '^(gateway|pool|singleton):[A-Za-z0-9._:-]{1,200}$'),
    -- CONTROLLER/PROCESS: a controller that starts again takes over from its own predecessor at once, since the lock on its
    -- state directory says that it is gone; the epoch rises all the same.
    owner text NOT NULL CHECK (owner ~ '^[A-Za-z0-9._-]{1,100}/[A-Za-z0-9._-]{1,100}$'),
    epoch bigint NOT NULL CHECK (epoch >= 1),
    taken_at timestamptz NOT NULL,
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (isfinite(expires_at))
) WITH (fillfactor = 50);

-- The controller whose session the node has, or had last; its gateway lease says whether it lives.
ALTER TABLE nodes ADD COLUMN gateway text;
