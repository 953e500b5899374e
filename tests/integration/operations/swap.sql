-- Two of these in opposite order are a deadlock.
WITH note AS (
    INSERT INTO notes (idempotency_key, body) VALUES ($2, $1)
)
SELECT 201 AS status, swap($1) AS response
