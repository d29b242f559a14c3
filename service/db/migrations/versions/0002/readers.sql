-- Who answers predictions, from which version, and until when: a version is `applied` once none is left on an older one.
CREATE TABLE reader_leases (
    reader uuid PRIMARY KEY,
    model text NOT NULL,
    version bigint NOT NULL CHECK (version >= 0),
    expires_at timestamptz NOT NULL
)
