-- Changes its session as the request says.
SELECT 200 AS status, change_session($1) AS response
