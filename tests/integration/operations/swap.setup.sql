CREATE TABLE IF NOT EXISTS balances (id integer PRIMARY KEY, amount integer NOT NULL);
INSERT INTO balances VALUES (1, 0), (2, 0) ON CONFLICT DO NOTHING;

-- Touches two rows in the order of the request, with a pause in between.
CREATE OR REPLACE FUNCTION swap(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    UPDATE balances SET amount = amount + 1 WHERE id = (request ->> 'first')::int;
    PERFORM pg_sleep(0.05);
    UPDATE balances SET amount = amount - 1 WHERE id = (request ->> 'second')::int;
    RETURN '{"swapped": true}';
END
$$;
