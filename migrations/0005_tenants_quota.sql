-- Who belongs to which tenant, and what each tenant may hold.

-- A user without a row belongs to tenant "default".
CREATE TABLE tenant_users (
    user_name text PRIMARY KEY CHECK (user_name <> ''),
    tenant_id int NOT NULL REFERENCES tenants
);

-- One row a tenant and resource. used is the charge of everything of the tenant's that has not ended, waiting work included;
-- max is what the administrator set, NULL for no limit. A max set below use cannot take away what runs: ceiling is then the
-- use, falls with it as work ends, and never below max. Nothing new is charged above max. The CHECK is the backstop behind
-- the guarded updates.
-- gpu_units are 5040ths of a GPU (ctld-core, gpu_share); gpus:MODEL counts claims of that model in the same unit.
CREATE TABLE quota_usage (
    tenant_id int NOT NULL REFERENCES tenants,
    resource text NOT NULL CHECK (resource IN ('jobs', 'cpus', 'mem_mib', 'disk_mib', 'gpu_units', 'atoms')
        OR resource ~ '^gpus:[a-z0-9][a-z0-9.+_-]*$'),
    used bigint NOT NULL DEFAULT 0 CHECK (used >= 0),
    max bigint CHECK (max >= 0),
    ceiling bigint,
    PRIMARY KEY (tenant_id, resource),
    CHECK ((max IS NULL) = (ceiling IS NULL) AND ceiling >= max),
    CONSTRAINT quota_usage_within CHECK (used <= ceiling)
) WITH (fillfactor = 50);
