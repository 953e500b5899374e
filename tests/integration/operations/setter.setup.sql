-- Runs what the request says, and answers what the session looked like before.
CREATE OR REPLACE FUNCTION change_session(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    before jsonb;
BEGIN
    SELECT jsonb_build_object(
        'role', current_user,
        'search_path', current_setting('search_path'),
        'statement_timeout', current_setting('statement_timeout'),
        'lock_timeout', current_setting('lock_timeout'),
        'synchronous_commit', current_setting('synchronous_commit'),
        'time_zone', current_setting('TimeZone'),
        'mine', current_setting('mine.own', true),
        'advisory_locks', (SELECT count(*) FROM pg_locks
                           WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND classid = 7),
        'listens', (SELECT count(*) FROM pg_listening_channels()))
    INTO before;
    EXECUTE coalesce(request ->> 'run', 'SELECT');
    RETURN before;
END
$$;
