-- Writes a child before its parent, whose foreign key is checked at the end.
SELECT 201 AS status, adopt($1) AS response
