-- How nodes on other machines are known: certificates of the cluster's own authority, got for a token that is good once.
--
-- Every controller over this database signs with the same authority, so its key is here. Whoever reads this table can make
-- certificates of nodes; whoever reads the database as its owner can change the book itself, which is no less. The API gives
-- it to nobody.
CREATE TABLE certificate_authorities (
    -- 1, 2, …: of two controllers that make the next one at once, one does.
    id int PRIMARY KEY CHECK (id >= 1),
    certificate text NOT NULL,
    key text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at > created_at)
);

CREATE TABLE node_tokens (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- SHA-256 of the secret, which is shown once and kept nowhere.
    hash bytea NOT NULL UNIQUE CHECK (length(hash) = 32),
    -- The only node that may join with it. Without one, only a name that no node has had may.
    node text CHECK (node ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$'),
    author text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at > created_at),
    used_at timestamptz,
    -- Whose key it was used for: the same key asks again when the answer was lost, another is refused.
    key_hash bytea CHECK (length(key_hash) = 32),
    CHECK ((used_at IS NULL) = (key_hash IS NULL))
);

CREATE TABLE node_certificates (
    serial text PRIMARY KEY CHECK (serial ~ '^[0-9a-f]{32}$'),
    node_id bigint NOT NULL REFERENCES nodes,
    authority_id int NOT NULL REFERENCES certificate_authorities,
    -- The token that it was got for; a renewed one has none. No token is good for two.
    token_id bigint UNIQUE REFERENCES node_tokens,
    key_hash bytea NOT NULL CHECK (length(key_hash) = 32),
    certificate text NOT NULL,
    issued_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at > issued_at),
    revoked_at timestamptz,
    revoked_by text,
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
CREATE INDEX node_certificates_of_node ON node_certificates (node_id);
