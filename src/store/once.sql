-- The idempotent write: a batch of calls in, what came of each out, in one transaction and one round trip.
--
-- It is made in pg_temp when a connection is made, so it needs no right but TEMP and is never of another version than
-- the program. The arrays run in parallel, one element a call; no (scope, key) stands in them twice. A call ends as
--
--   ran, refused     now: its answer is stored                    exists   earlier: the stored answer and its hash
--   failed           its SQLSTATE and text; nothing of it stays   expired  purged, and its tombstone stands
--   gone             the record that was in the way is purged: call again
--
-- and a last row, `spoiled`, says that the session must not be used again.
--
-- What a savepoint cannot contain (a statement timeout, a failed commit, a rival waited for too long) is an error of
-- the whole: the caller then runs the members again, each alone.
CREATE FUNCTION pg_temp.onced_write(
    scopes text[], keys text[], operations text[], hashes text[], ids uuid[], instances text[], bodies jsonb[],
    claim_wait text, refusal jsonb, tombstones boolean, max_events integer, max_response integer)
RETURNS TABLE (call integer, result text, code text, note text, answer_status integer, answer text,
               answer_is_problem boolean, stored_hash text, age_ms bigint, micros bigint)
LANGUAGE plpgsql AS $onced$
DECLARE
    claimed integer[];  rows tid[];  unused tid[];
    telling integer[];  told jsonb[];  ordered boolean := false;  expected bigint := 0;  written bigint;
    began timestamptz;  running boolean;  place text;  detail text;  rule text;  its_table text;
    o_status numeric;  o_response jsonb;  o_events jsonb;
BEGIN
    -- Claim. The insert waits for a rival that holds the key; the next statement sees what that one committed. Every
    -- daemon claims in the same order, so that two batches do not wait for each other crosswise.
    PERFORM set_config('lock_timeout', claim_wait, true), set_config('plan_cache_mode', 'force_generic_plan', true);
    WITH claim AS (
        INSERT INTO idempotency_records AS r (scope, key, operation, request_hash, status, http_status)
        SELECT a.scope, a.key, a.operation, a.hash, 'succeeded', 200
        FROM unnest(scopes, keys, operations, hashes) AS a (scope, key, operation, hash)
        ORDER BY a.scope, a.key
        ON CONFLICT (scope, key) DO NOTHING
        RETURNING r.scope, r.key, r.ctid)
    SELECT array_agg(a.n), array_agg(c.ctid) INTO claimed, rows
    FROM unnest(scopes, keys) WITH ORDINALITY AS a (scope, key, n)
    JOIN claim AS c ON c.scope = a.scope AND c.key = a.key;

    -- What was in the way of the others.
    IF coalesce(cardinality(claimed), 0) < cardinality(keys) THEN
        RETURN QUERY
        SELECT a.n::integer, CASE WHEN r.key IS NULL THEN 'gone' ELSE 'exists' END, NULL::text, NULL::text,
               r.http_status, coalesce(r.response_json::text, 'null'), r.is_problem, r.request_hash,
               (extract(epoch FROM clock_timestamp() - r.created_at) * 1000)::bigint, 0::bigint
        FROM unnest(scopes, keys) WITH ORDINALITY AS a (scope, key, n)
        LEFT JOIN idempotency_records AS r ON r.scope = a.scope AND r.key = a.key
        WHERE a.n <> ALL (coalesce(claimed, '{}'));
        -- A server that crashed while a commit waited for its synchronous standby shows the record before the standby
        -- has it. Who is told of it must not lose it: this makes our own commit wait for all that came before.
        IF current_setting('synchronous_standby_names') <> '' THEN
            PERFORM pg_logical_emit_message(true, 'onced', 'replay');
        END IF;
    END IF;

    RESET plan_cache_mode;
    RESET lock_timeout;
    FOR n IN 1 .. coalesce(cardinality(claimed), 0) LOOP
        call := claimed[n];
        began := clock_timestamp();
        age_ms := extract(epoch FROM began - now()) * 1000;
        answer_is_problem := false;
        code := NULL;
        note := NULL;
        running := false;
        BEGIN
            IF tombstones THEN
                PERFORM FROM idempotency_tombstones AS t WHERE t.scope = scopes[call] AND t.key = keys[call];
                IF FOUND THEN
                    RAISE SQLSTATE 'ONC03' USING MESSAGE = 'the key has expired';
                END IF;
            END IF;
            -- Only an error that is raised while the operation itself runs can be its refusal.
            running := true;
            CASE operations[call]
                /* operations */
            END CASE;
            -- A deferred constraint fails here, as a refusal like any other. The check is rolled back by itself, so
            -- that the next call may defer again.
            BEGIN
                SET CONSTRAINTS ALL IMMEDIATE;
                RAISE SQLSTATE 'ONC01';
            EXCEPTION WHEN SQLSTATE 'ONC01' THEN
            END;
            running := false;
            RESET ALL;
            RESET ROLE;
            answer_status := o_status;
            answer := coalesce(o_response::text, 'null');
            CASE
            WHEN o_status IS NULL THEN
                answer_status := 200;
            WHEN o_status <> answer_status OR answer_status NOT BETWEEN 200 AND 499 OR answer_status / 100 = 3
                 OR answer_status IN (204, 205) THEN
                RAISE SQLSTATE 'ONC02' USING MESSAGE = format('status %s is no 2xx or 4xx with a body', o_status);
            ELSE
            END CASE;
            IF octet_length(answer) > max_response THEN
                RAISE SQLSTATE 'ONC02' USING MESSAGE = format('the response has %s bytes', octet_length(answer));
            END IF;
            IF jsonb_typeof(o_events) <> 'array' THEN
                RAISE SQLSTATE 'ONC02' USING MESSAGE = 'events is no array';
            ELSIF jsonb_array_length(o_events) > max_events THEN
                RAISE SQLSTATE 'ONC02' USING MESSAGE = format('%s events are too many', jsonb_array_length(o_events));
            END IF;
            result := 'ran';
            IF answer_status >= 400 THEN
                RAISE SQLSTATE 'ONC06';
            END IF;
        EXCEPTION WHEN SQLSTATE 'ONC06' THEN
            -- A refusal by a returned 4xx: what the operation had written is gone, its answer and its events stay.
        WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, note = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
                place = PG_EXCEPTION_CONTEXT,
                rule = CONSTRAINT_NAME, its_table = TABLE_NAME;
            answer_status := CASE
                WHEN NOT running THEN NULL
                -- A sequence is used up; a partition is missing. The request is not to blame, and it may be mended.
                WHEN code = '2200H' OR code = '23514' AND rule = '' AND its_table <> '' THEN NULL
                WHEN code ~ '^PT4[0-9][0-9]$' THEN substr(code, 3)::integer
                WHEN code IN ('23505', '23503', '23P01') THEN 409
                WHEN code = 'P0001' OR code LIKE '22%' OR code LIKE '23%' THEN 422
            END;
            o_events := NULL;
            o_response := refusal || jsonb_build_object(
                'status', answer_status, 'code', code, 'instance', instances[call]);
            IF code = 'P0001' OR code LIKE 'PT%' THEN
                o_response := o_response || jsonb_build_object('detail', note);
            END IF;
            answer := o_response::text;
            answer_is_problem := true;
            result := CASE
                WHEN answer_status IS NOT NULL THEN 'refused' WHEN code = 'ONC03' THEN 'expired' ELSE 'failed'
            END;
            note := concat_ws(' | ', note, nullif(detail, ''), left(place, 300));
        END;
        -- A session's advisory locks outlive even the savepoint that is rolled back.
        PERFORM pg_advisory_unlock_all();

        micros := extract(epoch FROM clock_timestamp() - began) * 1000000;
        RETURN NEXT;
        IF result IN ('failed', 'expired') THEN
            unused := unused || rows[n];
            CONTINUE;
        END IF;
        UPDATE idempotency_records AS r
        SET status = CASE WHEN answer_status < 300 THEN 'succeeded' ELSE 'rejected' END,
            http_status = answer_status, response_json = o_response, is_problem = answer_is_problem
        WHERE r.ctid = rows[n];
        IF o_events IS NOT NULL THEN
            telling := telling || call;
            told := told || o_events;
            expected := expected + jsonb_array_length(o_events);
            ordered := ordered OR jsonb_path_exists(o_events, '$[*].order');
        END IF;
    END LOOP;

    IF unused IS NOT NULL THEN
        DELETE FROM idempotency_records AS r WHERE r.ctid = ANY (unused);
    END IF;
    IF told IS NOT NULL THEN
        PERFORM set_config('plan_cache_mode', 'force_generic_plan', true);
        -- Ids must follow the order of commits for one order key: it is locked before its ids are drawn, several of
        -- them in one order.
        IF ordered THEN
            BEGIN
                PERFORM pg_advisory_xact_lock(k.hash) FROM (
                    SELECT DISTINCT hashtextextended(scopes[t.call] || chr(1) || (e ->> 'order'), 0) AS hash
                    FROM unnest(telling, told) AS t (call, events), jsonb_array_elements(t.events) AS e
                    WHERE e ? 'order' ORDER BY hash) AS k;
            EXCEPTION WHEN lock_not_available THEN
                RAISE SQLSTATE 'ONC04' USING MESSAGE = 'an order key is held by another transaction';
            END;
        END IF;
        INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload, order_key)
        SELECT scopes[t.call], keys[t.call], ids[t.call] || ':' || coalesce(e.event ->> 'key', e.n::text),
               e.event ->> 'type', e.event -> 'payload', e.event ->> 'order'
        FROM unnest(telling, told) WITH ORDINALITY AS t (call, events, n),
             jsonb_array_elements(t.events) WITH ORDINALITY AS e (event, n)
        WHERE e.event ? 'payload' AND e.event - '{type,payload,key,order}'::text[] = '{}'
          AND jsonb_typeof(e.event -> 'type') = 'string' AND length(e.event ->> 'type') BETWEEN 1 AND 200
          AND e.event ->> 'type' !~ '[^A-Za-z0-9_.]'
          AND coalesce(jsonb_typeof(e.event -> 'key'), 'null') IN ('string', 'null')
          AND coalesce(length(e.event ->> 'key') <= 100 AND e.event ->> 'key' ~ '^[A-Za-z][A-Za-z0-9_-]*$', true)
          AND coalesce(jsonb_typeof(e.event -> 'order'), 'null') IN ('string', 'null')
          AND coalesce(length(e.event ->> 'order') BETWEEN 1 AND 200, true)
        ORDER BY t.n, e.n;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> expected THEN
            RAISE SQLSTATE 'ONC02' USING MESSAGE = 'an event is not {"type", "payload"} with an optional "key" and "order"';
        END IF;
        RESET plan_cache_mode;
    END IF;
    UNLISTEN *;
    -- A temporary table outlives the transaction; we must not drop what we do not know.
    PERFORM FROM pg_depend AS d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = pg_my_temp_schema()
        AND d.classid = 'pg_class'::regclass;
    IF FOUND THEN
        call := 0;
        result := 'spoiled';
        RETURN NEXT;
    END IF;
END
$onced$;
