-- The idempotency records, the outbox, and what the schema asks of the program that uses it.

-- One row for each (scope, key) whose request was answered for good. It is inserted, completed and committed in one
-- transaction with the business rows and the events, so no other session ever sees one that is in progress.
CREATE TABLE idempotency_records (
    scope         text COLLATE "C" NOT NULL,           -- the principal; '' where nobody authenticates
    key           text COLLATE "C" NOT NULL,
    operation     text NOT NULL,
    request_hash  text NOT NULL,                       -- recipe ':' hex digest
    status        text NOT NULL CHECK (status IN ('succeeded', 'rejected')),
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
    attempts        integer NOT NULL DEFAULT 0,        -- POSTs that were begun
    claims          bigint NOT NULL DEFAULT 0,         -- the fence: only ever rises
    due_at          timestamptz NOT NULL DEFAULT now(),
    last_error      text,
    dead_at         timestamptz,
    discarded_at    timestamptz,
    discarded_by    text,
    order_key       text COLLATE "C",
    format          smallint NOT NULL DEFAULT 1        -- of the body on the wire
);

CREATE INDEX outbox_events_by_key ON outbox_events (idempotency_key);
CREATE INDEX outbox_events_due ON outbox_events (due_at) WHERE sent_at IS NULL AND dead_at IS NULL;
CREATE INDEX outbox_events_dead ON outbox_events (id) WHERE dead_at IS NOT NULL AND discarded_at IS NULL;

-- The bare keys of purged records, where retention.tombstones keeps them.
CREATE TABLE idempotency_tombstones (
    scope   text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, key)
);

-- What the schema asks of its program: 'minimum_version' is the oldest version of onced that may use it.
CREATE TABLE onced_schema (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO onced_schema VALUES ('minimum_version', '0.1.0');
