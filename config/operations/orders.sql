-- Writes one order and tells of it twice: once to those who ship, once to those who audit.
-- $1 the request (jsonb), $2 its idempotency key (text), $3 the principal who sent it (text)
WITH new_order AS (
    INSERT INTO orders (idempotency_key, item, quantity)
    VALUES ($2, $1 ->> 'item', ($1 ->> 'quantity')::integer)
    RETURNING id, idempotency_key, item, quantity, created_at
)
SELECT 201 AS status,
       to_jsonb(new_order) AS response,
       jsonb_build_array(
           jsonb_build_object('type', 'order.created', 'payload', to_jsonb(new_order)),
           jsonb_build_object('type', 'audit.order_created',
                              'payload', jsonb_build_object('order_id', id, 'principal', $3))
       ) AS events
FROM new_order
