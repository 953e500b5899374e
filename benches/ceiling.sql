-- The least that PostgreSQL has to do for one idempotent order: what the operation `orders` and its record write, in
-- one call of a plain function. A pgbench of it is the ceiling that everything else is compared with.
CREATE OR REPLACE FUNCTION ceiling_order(the_key text, the_hash text, request jsonb, OUT status integer, OUT answer text)
LANGUAGE plpgsql AS $$
DECLARE
    new_order orders;
    response jsonb;
BEGIN
    INSERT INTO idempotency_records AS r (scope, key, operation, request_hash, status, http_status)
    VALUES ('', the_key, 'orders', the_hash, 'succeeded', 200)
    ON CONFLICT (scope, key) DO NOTHING;
    IF NOT FOUND THEN
        SELECT r.http_status, r.response_json::text INTO status, answer
        FROM idempotency_records AS r WHERE r.scope = '' AND r.key = the_key;
        RETURN;
    END IF;
    INSERT INTO orders (idempotency_key, item, quantity)
    VALUES (the_key, request ->> 'item', (request ->> 'quantity')::integer)
    RETURNING * INTO new_order;
    response := to_jsonb(new_order);
    INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload)
    VALUES ('', the_key, the_key || ':1', 'order.created', response),
           ('', the_key, the_key || ':2', 'audit.order_created',
            jsonb_build_object('order_id', new_order.id, 'principal', ''));
    UPDATE idempotency_records AS r SET status = 'succeeded', http_status = 201, response_json = response
    WHERE r.scope = '' AND r.key = the_key;
    status := 201;
    answer := response::text;
END
$$;
