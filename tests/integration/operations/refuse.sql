-- Writes a note, and then raises the SQLSTATE that the request names.
WITH note AS (
    INSERT INTO notes (idempotency_key, body) VALUES ($2, $1) RETURNING id
)
SELECT 201 AS status, refuse($1) AS response, '[{"type": "note.written", "payload": {}}]'::jsonb AS events FROM note
