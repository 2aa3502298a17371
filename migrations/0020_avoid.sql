-- Away from the node that failed: where a job's attempts failed for no fault of its own that is known, it is not placed again
-- while it has other nodes to go to. A person who sends it back to the queue takes that back.
ALTER TABLE jobs ADD COLUMN avoid bigint[] NOT NULL DEFAULT '{}' CHECK (cardinality(avoid) <= 64);

-- Launches that failed lately: looked through for nodes that fail what runs elsewhere.
CREATE INDEX attempts_not_launched ON attempts (ended_at) WHERE outcome = 'failed' AND started_at IS NULL AND ended_at IS NOT NULL;
