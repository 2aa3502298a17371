-- Holds on a node, a GPU or an atom of it, from a time on, perhaps until another.
ALTER TABLE holds
    -- The atom held, where it is not the whole GPU.
    ADD COLUMN atom text,
    -- Who wrote it; the owner is on whose behalf it stands, and may lift it.
    ADD COLUMN author text,
    -- When it is to hold; an open end until somebody lifts it. It holds at an instant in this range while it is not closed.
    ADD COLUMN during tstzrange;
UPDATE holds SET author = owner, during = tstzrange(opened_at, NULL);
ALTER TABLE holds
    ALTER COLUMN author SET NOT NULL,
    ALTER COLUMN during SET NOT NULL,
    ADD CHECK (NOT isempty(during) AND NOT lower_inf(during) AND isfinite(lower(during))
        AND (upper_inf(during) OR isfinite(upper(during)))),
    ADD CHECK (atom IS NULL OR gpu_id IS NOT NULL);
-- Those whose start or end the controller still has to act on.
CREATE INDEX holds_of_gpu ON holds (gpu_id) WHERE closed_at IS NULL AND gpu_id IS NOT NULL;
