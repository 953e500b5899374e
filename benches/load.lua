-- Usage: wrk -t THREADS -c CONNECTIONS -d TIME -s load.lua URL -- MODE [N | FILE]
--   new [FILE]  every request has a key of its own, ordered by time as UUIDv7 are; FILE holds the body
--   paced N     the same, with pauses of N ms on average between an answer and the next request
--   spread N    the keys seed-1 to seed-N, at random
--   hot         one key
--   event       what a relay posts, to a sink
-- Prints one line of JSON: requests, seconds, latencies in ms, and whatever was no success.

local BODY = '{"item": "widget", "quantity": 2}'
local EVENT = '{"type":"order.created","timestamp":"2026-12-01T09:30:00.123456Z","event_id":1234567,'
    .. '"event_key":"0193807c-5a1e-7a3e-9d6f-2f4c8d1b7a90:1","principal":"",'
    .. '"idempotency_key":"0193807c-5a1e-7a3e-9d6f-2f4c8d1b7a90","data":{"id":1234567,"item":"widget","quantity":2,'
    .. '"created_at":"2026-12-01T09:30:00.123456+00:00","idempotency_key":"0193807c-5a1e-7a3e-9d6f-2f4c8d1b7a90"}}'

local threads = 0

function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

local function new_key(count)
    -- 48 bits of time: the start in ms and a step for every fourth request of a thread.
    local time = started + math.floor(count / 4)
    return string.format("%08x-%04x-7%03x-8%03x-%04x%08x", math.floor(time / 65536), time % 65536, count % 4096,
        number, math.random(0, 65535), math.random(0, 2147483647))
end

function init(args)
    local mode, n = args[1], tonumber(args[2])
    local text = mode == "event" and EVENT or BODY
    if mode == "new" and args[2] then text = assert(io.open(args[2])):read("*a") end
    local extra = mode == "event"
        and "webhook-id: 0193807c-5a1e-7a3e-9d6f-2f4c8d1b7a90:1\r\nwebhook-timestamp: 1764581400\r\n"
            .. "webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\r\n" or ""
    local head = string.format("POST %s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n%s"
        .. "Content-Length: %d\r\n", wrk.path, wrk.host, wrk.port, extra, #text)
    local tail = "\r\n\r\n" .. text
    local count = 0
    started = os.time() * 1000
    math.randomseed(os.time() * 64 + number)

    local keys = {
        new = function() count = count + 1; return new_key(count) end,
        spread = function() return "seed-" .. math.random(1, n) end,
        hot = function() return "seed-1" end,
    }
    keys.paced = keys.new
    local key = keys[mode]
    request = function()
        if key then return head .. "Idempotency-Key: " .. key() .. tail end
        return head .. tail:sub(3)
    end
    if mode == "paced" then
        delay = function() return math.floor(-math.log(1 - math.random()) * n + 0.5) end
    end
end

function done(summary, latency, _)
    local errors = summary.errors
    io.write(string.format(
        '{"requests": %d, "seconds": %.6f, "p50": %.3f, "p99": %.3f, "max": %.3f, "failed": %d}\n',
        summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
        latency.max / 1e3, errors.connect + errors.read + errors.write + errors.timeout + errors.status))
end
