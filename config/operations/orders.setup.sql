-- The table of the shipped example. `onced migrate` runs this; it may run any number of times.
CREATE TABLE IF NOT EXISTS orders (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    idempotency_key text NOT NULL,
    item            text NOT NULL,
    quantity        integer NOT NULL CHECK (quantity >= 1),
    created_at      timestamptz NOT NULL DEFAULT now()
);
