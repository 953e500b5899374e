-- Answers as many MiB as the request says.
SELECT 200 AS status, to_jsonb(repeat('x', ($1 ->> 'mb')::int * 1024 * 1024)) AS response
