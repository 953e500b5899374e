-- Writes a note, and answers what the request says, row by row: {"rows": [{"status", "response", "events"}, …]}.
WITH note AS (
    INSERT INTO notes (idempotency_key, body) VALUES ($2, $1)
)
SELECT (line ->> 'status')::int AS status, line -> 'response' AS response, line -> 'events' AS events
FROM jsonb_array_elements($1 -> 'rows') AS line
