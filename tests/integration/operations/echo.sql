-- Answers its request, and sends it as an event.
SELECT 200 AS status, $1 AS response,
       jsonb_build_array(jsonb_build_object('type', 'echo', 'payload', $1)) AS events
