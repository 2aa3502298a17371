-- One clock. Every time comparison in SQL reads compute_now(), never now() or its kin, so that tests and the simulation can
-- set the time: they replace the body with "SELECT ts FROM compute_sim_clock WHERE id = 1". This file is the only one in
-- which a raw clock function may stand; scripts/check-sql-clock refuses it elsewhere.
CREATE EXTENSION IF NOT EXISTS btree_gist;

CREATE TABLE compute_sim_clock (
    id int PRIMARY KEY CHECK (id = 1),
    ts timestamptz NOT NULL
);

CREATE FUNCTION compute_now() RETURNS timestamptz
    LANGUAGE sql STABLE
    AS $$ SELECT now() $$;
