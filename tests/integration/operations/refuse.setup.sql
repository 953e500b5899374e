CREATE OR REPLACE FUNCTION refuse(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING
        ERRCODE = request ->> 'code',
        MESSAGE = coalesce(request ->> 'message', 'refused on purpose'),
        DETAIL = coalesce(request ->> 'detail', 'Key (email)=(other@example.com) already exists.'),
        TABLE = 'secret_table', CONSTRAINT = 'secret_constraint', COLUMN = 'secret_column';
END
$$;
