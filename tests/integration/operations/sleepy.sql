-- Takes its time, then writes a note and an event.
WITH waited AS MATERIALIZED (
    SELECT take_time($1) AS done
),
note AS (
    INSERT INTO notes (idempotency_key, body)
    SELECT $2, $1 FROM waited
    RETURNING id
)
SELECT 201 AS status,
       jsonb_build_object('id', id, 'request', $1) AS response,
       jsonb_build_array(jsonb_build_object('type', 'note.written', 'payload', jsonb_build_object('id', id))) AS events
FROM note
