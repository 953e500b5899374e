-- Writes into a table with a unique column.
INSERT INTO skus (sku, email, units)
VALUES ($1 ->> 'sku', $1 ->> 'email', ($1 ->> 'units')::smallint)
RETURNING 201 AS status, jsonb_build_object('sku', sku) AS response
