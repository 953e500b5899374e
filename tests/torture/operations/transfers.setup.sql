-- What the operations of the torture run write to, and what they do.
CREATE TABLE IF NOT EXISTS effects (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation text NOT NULL,
    scope     text NOT NULL,
    key       text NOT NULL,
    request   jsonb NOT NULL
);
CREATE TABLE IF NOT EXISTS counters (name text PRIMARY KEY, value bigint NOT NULL);
INSERT INTO counters SELECT 'c' || n, 0 FROM generate_series(0, 7) AS n ON CONFLICT DO NOTHING;

-- The request: {"n": a number, "counter": one that it raises, "events": how many, "order": their order key or null,
-- "sleep_ms": how long it takes, "end": how it ends, "poison": whether its events are never taken}.
CREATE OR REPLACE FUNCTION torture(
    operation text, request jsonb, key text, principal text, OUT status integer, OUT response jsonb, OUT events jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    effect bigint;
BEGIN
    IF request ->> 'end' = 'decline' THEN
        status := 402;
        response := jsonb_build_object('declined', request);
        events := jsonb_build_array(jsonb_build_object('type', 'torture.declined', 'payload', request));
        RETURN;
    END IF;
    INSERT INTO effects (operation, scope, key, request)
    VALUES (torture.operation, principal, torture.key, torture.request) RETURNING id INTO effect;
    UPDATE counters SET value = value + 1 WHERE name = request ->> 'counter';
    PERFORM pg_sleep((request ->> 'sleep_ms')::float8 / 1000);
    CASE request ->> 'end'
    WHEN 'ok' THEN
    WHEN 'raise' THEN
        RAISE 'refused on purpose' USING ERRCODE = 'PT422';
    WHEN 'unique' THEN
        INSERT INTO counters VALUES ('c0', 0);
    WHEN 'flaky' THEN
        IF random() < 0.5 THEN
            RAISE 'it fails now and then' USING ERRCODE = 'XX000';
        END IF;
    WHEN 'broken' THEN
        status := 999;
        RETURN;
    END CASE;
    status := 201;
    response := jsonb_build_object('effect', effect, 'request', request);
    SELECT jsonb_agg(
        jsonb_build_object('type', 'torture.done', 'payload', jsonb_build_object(
            'effect', effect, 'n', n, 'poison', request -> 'poison'))
        || CASE WHEN request ->> 'order' IS NULL THEN '{}' ELSE jsonb_build_object('order', request -> 'order') END)
    INTO events FROM generate_series(1, (request ->> 'events')::integer) AS n;
END
$$;
