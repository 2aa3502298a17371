-- Which part of its GPU a hold covers, as integers like a booking's span: work is refused exactly where the two overlap.
ALTER TABLE holds ADD COLUMN span int4range CHECK (NOT isempty(span));
UPDATE holds SET span = int4range(NULL, NULL) WHERE gpu_id IS NOT NULL;
ALTER TABLE holds ADD CHECK ((gpu_id IS NULL) = (span IS NULL));
-- What the controller looks through for beginnings and ends.
CREATE INDEX holds_open_by_start ON holds (lower(during)) WHERE closed_at IS NULL;

-- Whether a hold holds now. One that was put for the time of its own transaction holds for whoever can see it, also for a
-- transaction that began before: the clock of the two must not let work in that was placed after the hold was acknowledged.
CREATE FUNCTION hold_in_effect(h holds) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT h.closed_at IS NULL AND lower(h.during) <= greatest(compute_now(), h.opened_at)
        AND (upper_inf(h.during) OR upper(h.during) > compute_now())
$$;
