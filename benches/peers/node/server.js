// What one would write by hand instead of using onced: a handler that runs the six statements in a transaction.
// Usage: node server.js PORT POSTGRES_URL. Keep-alive, a pool, prepared statements; one process.
import { createHash } from "node:crypto";
import fastify from "fastify";
import pg from "pg";

const [port, url] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString: url, max: 16 });
const app = fastify({ keepAliveTimeout: 75_000 });

// A name makes a statement prepared: once for each connection.
const CLAIM = {
  name: "claim",
  text: `INSERT INTO idempotency_records (scope, key, operation, request_hash, status, http_status)
         VALUES ('', $1, 'orders', $2, 'succeeded', 200) ON CONFLICT (scope, key) DO NOTHING`,
};
const FIND = {
  name: "find",
  text: `SELECT http_status, request_hash, response_json::text AS response FROM idempotency_records
         WHERE scope = '' AND key = $1`,
};
const ORDER = {
  name: "order",
  text: `INSERT INTO orders (idempotency_key, item, quantity) VALUES ($1, $2, $3)
         RETURNING id, idempotency_key, item, quantity, created_at`,
};
const EVENTS = {
  name: "events",
  text: `INSERT INTO outbox_events (scope, idempotency_key, event_key, event_type, payload)
         VALUES ('', $1, $1 || ':1', 'order.created', $2), ('', $1, $1 || ':2', 'audit.order_created', $3)`,
};
const RECORD = {
  name: "record",
  text: `UPDATE idempotency_records SET http_status = 201, response_json = $2 WHERE scope = '' AND key = $1
         RETURNING response_json::text AS response`,
};

async function write(client, key, hash, body) {
  await client.query("BEGIN");
  const claimed = await client.query({ ...CLAIM, values: [key, hash] });
  if (claimed.rowCount === 0) {
    const found = await client.query({ ...FIND, values: [key] });
    await client.query("COMMIT");
    const record = found.rows[0];
    return record.request_hash === hash ? [record.http_status, record.response] : [409, "{}"];
  }
  const order = (await client.query({ ...ORDER, values: [key, body.item, body.quantity] })).rows[0];
  const audit = { order_id: order.id, principal: "" };
  await client.query({ ...EVENTS, values: [key, order, audit] });
  const record = await client.query({ ...RECORD, values: [key, order] });
  await client.query("COMMIT");
  return [201, record.rows[0].response];
}

app.post("/v1/orders", async (request, reply) => {
  const key = request.headers["idempotency-key"];
  if (!key) return reply.code(400).send();
  const hash = createHash("sha256").update(JSON.stringify(request.body)).digest("hex");
  const client = await pool.connect();
  let failed = true;
  try {
    const [status, response] = await write(client, key, hash, request.body);
    failed = false;
    return reply.code(status).type("application/json").send(response);
  } finally {
    // One that failed in the middle of its transaction is thrown away.
    client.release(failed);
  }
});

await app.listen({ host: "127.0.0.1", port: Number(port) });
