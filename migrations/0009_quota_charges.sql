-- What each job is charged against its tenant's quota, so that what is given back when a task ends is what was taken when it
-- was submitted, whatever the rules say by then.
ALTER TABLE jobs
    -- For each task that has not ended: resource to amount, as in quota_usage.
    ADD COLUMN charge jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(charge) = 'object');
