-- What most operations of the tests write to.
CREATE TABLE IF NOT EXISTS notes (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    idempotency_key text NOT NULL,
    body            jsonb NOT NULL
);
CREATE SEQUENCE IF NOT EXISTS runs;

-- Takes the time that the request asks for: "s" seconds, or until the gate of that number is opened. Then fails, with
-- an error that is no refusal, for the first "fail" runs, or hangs for the first "hang" runs: a sequence counts them,
-- since a rollback does not undo it.
CREATE OR REPLACE FUNCTION take_time(request jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF request ? 'gate' THEN
        PERFORM pg_advisory_xact_lock_shared(0, (request ->> 'gate')::int);
    END IF;
    IF request ? 's' THEN
        PERFORM pg_sleep((request ->> 's')::float8);
    END IF;
    IF request ? 'fail' AND nextval('runs') <= (request ->> 'fail')::int THEN
        RAISE 'this run fails' USING ERRCODE = 'XX000';
    END IF;
    IF request ? 'hang' AND nextval('runs') <= (request ->> 'hang')::int THEN
        PERFORM pg_sleep(600);
    END IF;
END
$$;
