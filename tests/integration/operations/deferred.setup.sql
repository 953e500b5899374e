CREATE TABLE IF NOT EXISTS parents (id integer PRIMARY KEY);
CREATE TABLE IF NOT EXISTS children (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent integer NOT NULL REFERENCES parents DEFERRABLE INITIALLY DEFERRED
);

-- Writes the child in one statement and its parent, where one is asked for, in the next.
CREATE OR REPLACE FUNCTION adopt(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO children (parent) VALUES ((request ->> 'parent')::int);
    IF (request ->> 'exists')::boolean THEN
        INSERT INTO parents VALUES ((request ->> 'parent')::int);
    END IF;
    RETURN jsonb_build_object('parent', request -> 'parent');
END
$$;
