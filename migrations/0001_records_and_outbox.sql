-- The idempotency records, the outbox, and what the schema asks of the program that uses it.

-- One row for each (scope, key) whose request was answered for good. It is inserted, completed and committed in one
-- transaction with the business rows and the events, so no other session ever sees one that is in progress.
CREATE TABLE idempotency_records (
    scope         text COLLATE "C" NOT NULL,           -- the principal; '' where nobody authenticates
    key           text COLLATE "C" NOT NULL,
    operation     text NOT NULL,
    request_hash  text NOT NULL,                       -- recipe ':' hex digest
    status        text NOT NULL,                       -- succeeded or rejected
    http_status   integer NOT NULL,
    response_json jsonb,
    is_problem    boolean NOT NULL DEFAULT false,      -- a raised refusal: application/problem+json
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
);

-- One row for each event that others must hear about.
CREATE TABLE outbox_events (
    id              bigserial PRIMARY KEY,
    scope           text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    event_key       text COLLATE "C" NOT NULL UNIQUE,  -- the identity that consumers see
    event_type      text NOT NULL,
    payload         jsonb NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    sent_at         timestamptz,
    attempts        integer NOT NULL DEFAULT 0,        -- POSTs that were begun and whose end was recorded
    claims          bigint NOT NULL DEFAULT 0,         -- the fence: only ever rises
    due_at          timestamptz NOT NULL DEFAULT now(),
    last_error      text,
    dead_at         timestamptz,
    discarded_at    timestamptz,                       -- a person gave it up; an attempt under way may still deliver it
    discarded_by    text,
    order_key       text COLLATE "C",
    format          smallint NOT NULL DEFAULT 1,       -- of the body on the wire
    forgiven        integer NOT NULL DEFAULT 0,        -- attempts before the last retry or replay: they kill no more
    retried_at      timestamptz,                       -- when a person last retried or replayed it
    failing_since   timestamptz                        -- its first failed attempt since then
) WITH (
    -- An event is updated twice and then rests. Vacuum has to follow the updates, not a share of what rests.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000
);

CREATE INDEX outbox_events_by_key ON outbox_events (idempotency_key);

-- What the relays claim: events without an order key by their time, and of those with one the first of each key. An
-- event is in one of the two, so that order costs nothing where nobody asks for it.
CREATE INDEX outbox_events_due ON outbox_events (due_at)
    WHERE sent_at IS NULL AND dead_at IS NULL AND order_key IS NULL;
CREATE INDEX outbox_events_ordered ON outbox_events (scope, order_key, id)
    WHERE sent_at IS NULL AND discarded_at IS NULL AND order_key IS NOT NULL;

CREATE INDEX outbox_events_dead ON outbox_events (id) WHERE dead_at IS NOT NULL AND discarded_at IS NULL;

-- The state of the sink that all daemons share: one row where it is paused until a person resumes it.
CREATE TABLE outbox_sink (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    paused_at timestamptz NOT NULL DEFAULT now(),
    paused_by text NOT NULL,
    reason    text NOT NULL
);

-- The bare keys of purged records, where retention.tombstones keeps them.
CREATE TABLE idempotency_tombstones (
    scope   text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),        -- when the record was purged
    PRIMARY KEY (scope, key)
);

CREATE INDEX idempotency_tombstones_by_age ON idempotency_tombstones (seen_at);

-- Who took a record away by hand, when, and what it was.
CREATE TABLE idempotency_audit (
    id      bigserial PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    who     text NOT NULL,
    action  text NOT NULL,
    scope   text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    details jsonb NOT NULL
);

-- What the schema asks of its program: 'minimum_version' is the oldest version of onced that may use it.
CREATE TABLE onced_schema (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO onced_schema VALUES ('minimum_version', '0.1.0');
