-- How much more of a pool's nodes is given out than they have. Nodes take their pool's ratios when they open a session and
-- when the pools are declared.
ALTER TABLE pools
    ADD COLUMN cpu_ratio numeric NOT NULL DEFAULT 1 CHECK (cpu_ratio BETWEEN 1 AND 100),
    ADD COLUMN mem_ratio numeric NOT NULL DEFAULT 1 CHECK (mem_ratio BETWEEN 1 AND 100),
    ADD COLUMN disk_ratio numeric NOT NULL DEFAULT 1 CHECK (disk_ratio BETWEEN 1 AND 100);
