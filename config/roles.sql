-- Two roles, so that the daemon cannot change a table: onced_owner owns the tables and is for `onced migrate`; onced_serve
-- reads and writes their rows and is for `onced serve` and all other commands.
--
-- Run it as a superuser, or as the database's owner with CREATEROLE, in the database and with the schema that onced is
-- to use, before the first `onced migrate`, and once more after it; any number of times does no harm. Then give the
-- roles passwords (\password in psql), and each command its own connection string:
--
--     psql -d app -f config/roles.sql
--     ONCED_DATABASE_URL='postgresql://onced_owner:…@db/app' onced migrate
--     psql -d app -f config/roles.sql
--     ONCED_DATABASE_URL='postgresql://onced_serve:…@db/app' onced serve
--
-- Tables of yours that operations use, and that onced_owner did not make, need a GRANT of their own.
DO $roles$
DECLARE
    role text;
    target text := quote_ident(current_schema());
BEGIN
    FOREACH role IN ARRAY ARRAY['onced_owner', 'onced_serve'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I LOGIN', role);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- It is there.
        END;
    END LOOP;

    -- TEMP, because the function of the write is made anew on each connection, as a temporary one.
    EXECUTE format('GRANT CONNECT, TEMPORARY ON DATABASE %I TO onced_owner, onced_serve', current_database());
    EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %s TO onced_owner', target);
    EXECUTE format('GRANT USAGE ON SCHEMA %s TO onced_serve', target);

    -- What `onced migrate` makes, also in later versions and in the setup of operations.
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE onced_owner IN SCHEMA %s
                    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO onced_serve', target);
    EXECUTE format('ALTER DEFAULT PRIVILEGES FOR ROLE onced_owner IN SCHEMA %s
                    GRANT USAGE ON SEQUENCES TO onced_serve', target);

    -- What says which program and schema fit is the owner's to write.
    IF to_regclass(target || '.onced_migrations') IS NOT NULL THEN
        EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON %1$s.onced_migrations, %1$s.onced_schema FROM onced_serve',
                       target);
    END IF;
END
$roles$;
