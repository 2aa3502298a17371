-- What each allocation is charged against its tenant's quota beyond what its job was charged when it was submitted: the model
-- of a GPU that was left open, the rest of a node given whole, and everything of one whose reservation has ended. It is given
-- back when the allocation is released. With the allocation, not the attempt: a release and a reservation's end write it when
-- they hold the node's amounts, and the locks of attempts come before those.
ALTER TABLE allocations
    -- Resource to amount, as in quota_usage.
    ADD COLUMN charge jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(charge) = 'object');
