-- Keys name any operation, not only submissions: reserve, extend, drain. The same key and body gets the same answer for ever.
ALTER TABLE idempotency_keys
    ADD COLUMN operation text NOT NULL DEFAULT 'submit'
        CHECK (operation IN ('submit', 'reserve', 'extend', 'drain', 'resume', 'gpu_mode')),
    -- What was answered, where it is not the job's id.
    ADD COLUMN answer jsonb,
    ALTER COLUMN job_id DROP NOT NULL,
    ADD CHECK ((operation = 'submit') = (job_id IS NOT NULL) AND (operation <> 'submit') = (answer IS NOT NULL));
