"use strict";
// The operator's page. What callers and sinks wrote reaches the page as text only: no markup is ever made of a string.

const EVERY = 5000; // ms between two looks
const LATE = 15000; // older than this, what is shown is stale
const ROWS = 20; // requests on one page

const CHARTS = [
  ["Requests", ["executed", "refused", "replayed", "reused", "in_progress", "invalid", "unavailable", "failed"]],
  ["Replays", ["replayed"]],
  ["Conflicts", ["reused", "in_progress"]],
  ["Refusals and errors", ["refused", "invalid", "unavailable", "failed"]],
];

const at = (id) => document.getElementById(id);
let heard = 0; // when all of it was last read
let asked = 0; // when the status was
let problem = ""; // why the last look failed
let status = null; // the latest that was heard
let requests = [];
let offset = 0;
let deadBefore = null; // the page of dead events that is shown
let paused = null;

// ---- speaking to the daemon

class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function ask(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = "Bearer " + token;
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(10000) };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    headers["X-Onced"] = "1";
    options.method = "POST";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch("/api/" + path, options);
  const value = await answer.json();
  if (answer.status === 401) needToken(token !== null);
  if (!answer.ok) throw new Refused(answer.status, value.detail || value.title || "refused");
  return value;
}

function needToken(wasWrong) {
  at("token-form").hidden = false;
  setText(at("token-error"), wasWrong ? "The daemon does not take this token." : "");
}

// ---- making elements

function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return element;
}

function draw(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// A live region speaks whenever it is written, so it is written only where it changes.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function pairs(list, rows) {
  list.replaceChildren(...rows.flatMap(([name, value, kind]) => [make("dt", {}, name), make("dd", kind ? { class: kind } : {}, value)]));
}

const DAY = { year: "numeric", month: "short", day: "numeric" };
const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };

const when = (text) => new Date(text).toLocaleString([], { ...DAY, ...TIME });
const exactly = (text) => new Date(text).toLocaleString([], { ...DAY, ...TIME, fractionalSecondDigits: 3 });
const clock = (text) => new Date(text).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

function span(seconds) {
  if (seconds < 120) return seconds + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h";
  return Math.floor(seconds / 86400) + " days";
}

const count = (number) => Number(number).toLocaleString();

// ---- what is shown

function showHealth(isKnown) {
  const health = at("health");
  if (!isKnown) setText(health, "Not known");
  else setText(health, status.ready ? "Healthy: it takes requests" : "Not ready: " + status.reason);
  health.className = !isKnown ? "odd" : status.ready ? "good" : "bad";
}

function showStatus() {
  setText(at("facts"), "Version " + status.version + ", up for " + span(status.uptime_seconds));
  const { writers, outbox, deliveries, connections } = status;
  pairs(at("writers"), [
    ["waiting in the queue", count(writers.jobs_waiting) + " of " + count(writers.queue), writers.jobs_waiting > writers.queue / 2 ? "odd" : ""],
    ["duplicates waiting", count(writers.parked_waiting)],
    ["writers", count(writers.threads)],
    ["transactions", count(writers.batches)],
    ["requests in one", writers.mean_batch_size === null ? "none yet" : writers.mean_batch_size.toFixed(1) + " on average"],
    ["time of one", writers.mean_write_ms === null ? "none yet" : writers.mean_write_ms.toFixed(1) + " ms on average"],
    ["callers connected", count(connections.http)],
  ]);
  const pause = outbox.pause;
  pairs(at("outbox"), [
    ["waiting for delivery", count(outbox.pending)],
    ["the oldest for", outbox.pending > 0 ? span(outbox.oldest_seconds) : "none waits", outbox.oldest_seconds > 300 ? "odd" : ""],
    ["dead, undecided", count(outbox.dead), outbox.dead > 0 ? "bad" : ""],
    ["deliveries", delivering(outbox), outbox.paused ? "bad" : ""],
    ...(pause ? [["paused by", pause.by], ["since", when(pause.at)], ["because", pause.reason]] : []),
    ["taken by the sink", count(deliveries.accepted)],
    ["failed attempts", count(deliveries.failed)],
    ["sink not reached", count(deliveries.sink_fault)],
  ]);
  paused = outbox.paused;
  at("pause").hidden = paused === null;
  setText(at("pause"), paused ? "Resume deliveries…" : "Pause deliveries…");
}

function delivering(outbox) {
  if (outbox.paused === null) return "not known";
  if (outbox.paused) return "paused";
  return outbox.sink_configured ? "going on" : "this daemon has no sink";
}

function showHistory(minutes) {
  at("charts").replaceChildren(...CHARTS.map(([title, outcomes]) => chart(title, minutes.map((minute) => outcomes.reduce((sum, outcome) => sum + minute[outcome], 0)), minutes)));
}

function chart(title, values, minutes) {
  const most = Math.max(...values);
  const total = values.reduce((sum, value) => sum + value, 0);
  const peak = most > 0 ? "at most " + count(most) + " a minute, at " + clock(minutes[values.indexOf(most)].at) : "none";
  const image = draw("svg", { viewBox: "0 0 60 20", preserveAspectRatio: "none", role: "img", "aria-label": title + ": " + count(total) + " in the last hour, " + peak });
  image.append(draw("line", { class: "base", x1: 0, x2: 60, y1: 20, y2: 20 }));
  values.forEach((value, place) => {
    if (value === 0) return;
    const height = Math.max((20 * value) / most, 0.6);
    image.append(draw("rect", { class: "bar", x: place + 0.1, width: 0.8, y: 20 - height, height }));
  });
  const ends = make("div", { class: "ends" }, make("span", {}, clock(minutes[0].at)), make("span", {}, "now"));
  return make("figure", { class: "card" }, make("figcaption", {}, make("h3", {}, title + ": " + count(total)), make("div", { class: "peak" }, peak)), image, ends);
}

function cell(label, content, kind) {
  return make("td", { "data-label": label, ...(kind ? { class: kind } : {}) }, content);
}

function keyButton(key, scope) {
  const button = make("button", { type: "button", class: "link code" }, key);
  button.addEventListener("click", () => {
    at("key").value = key;
    at("scope").value = scope;
    tellStory();
    at("key-title").scrollIntoView();
  });
  return button;
}

function showDead(page) {
  const events = page.events;
  at("dead-table").hidden = events.length === 0;
  at("dead-none").hidden = events.length > 0;
  setText(at("dead-none"), "None.");
  at("dead-next").hidden = !page.more;
  at("dead-next").onclick = () => turnDead(page.before);
  at("dead-first").hidden = deadBefore === null;
  // A row that is looked at, or has the focus, must not change under the hand.
  const shown = JSON.stringify(events);
  if (at("dead").dataset.shown === shown) return;
  at("dead").dataset.shown = shown;
  at("dead").replaceChildren(...events.map((event) => {
    const retry = make("button", { type: "button", "aria-label": "Retry event " + event.event_id + "…" }, "Retry…");
    const discard = make("button", { type: "button", "aria-label": "Discard event " + event.event_id + "…" }, "Discard…");
    retry.addEventListener("click", () => decide("retry", event));
    discard.addEventListener("click", () => decide("discard", event));
    return make("tr", {},
      cell("Event", event.event_id), cell("Type", event.type, "text"), cell("Key", keyButton(event.idempotency_key, event.principal), "text"),
      cell("Dead since", when(event.dead_at)), cell("Attempts", event.attempts), cell("Last error", event.last_error || "", "text"),
      cell("Decide", make("span", { class: "row" }, retry, discard)));
  }));
}

function turnDead(before) {
  deadBefore = before;
  look();
}

function showRecent() {
  const words = at("find").value.trim().toLowerCase();
  const outcome = at("outcome").value;
  const found = requests.filter((request) => (!outcome || request.outcome === outcome) &&
    (!words || [request.key, request.operation, request.request_id, request.principal].some((text) => (text || "").toLowerCase().includes(words))));
  offset = Math.max(0, Math.min(offset, Math.floor((found.length - 1) / ROWS) * ROWS));
  const rows = found.slice(offset, offset + ROWS);
  at("newer").disabled = offset === 0;
  at("older").disabled = offset + ROWS >= found.length;
  setText(at("place"), found.length === 0 ? "none" : offset + 1 + " to " + (offset + rows.length) + " of " + found.length);
  const shown = JSON.stringify(rows);
  if (at("recent").dataset.shown === shown) return;
  at("recent").dataset.shown = shown;
  at("recent").replaceChildren(...rows.map((request) => make("tr", {},
    cell("Time", new Date(request.at).toLocaleTimeString([], TIME), "nowrap"), cell("Operation", request.operation), cell("Outcome", request.outcome, outcomeKind(request.outcome)),
    cell("Status", request.status), cell("ms", request.ms), cell("Key", request.key === null ? "none" : keyButton(request.key, request.principal), "text"),
    cell("Principal", request.principal, "text"), cell("Request id", make("span", { class: "code" }, request.request_id), "id"))));
}

function outcomeKind(outcome) {
  if (outcome === "executed" || outcome === "replayed") return "good";
  return outcome === "failed" || outcome === "unavailable" ? "bad" : "odd";
}

// ---- one key

async function tellStory() {
  const [key, scope] = [at("key").value, at("scope").value];
  const story = at("story");
  try {
    const found = await ask("requests/" + encodeURIComponent(key) + "?scope=" + encodeURIComponent(scope));
    story.replaceChildren(storyOf(found));
  } catch (error) {
    story.replaceChildren(make("p", { class: "odd" }, error.message));
  }
}

function storyOf({ record, events }) {
  const steps = [];
  const step = (time, ...what) => steps.push([time, what]);
  if (record) {
    step(record.created_at, make("strong", {}, record.status + " (" + record.http_status + ")"), " by operation " + record.operation + "; every retry gets this answer:",
      make("pre", {}, record.response === null ? "(no body)" : JSON.stringify(record.response, null, 2)),
      make("div", { class: "dim" }, "fingerprint ", make("span", { class: "code" }, record.request_hash)));
  }
  for (const event of [...events].reverse()) {
    const name = "event " + event.event_id + " " + event.type;
    step(event.created_at, name + " was written", make("div", { class: "dim" }, "event key ", make("span", { class: "code" }, event.event_key)));
    const failed = event.attempts + (event.attempts === 1 ? " attempt" : " attempts") + " so far" + (event.last_error ? ", the last failure: " + event.last_error : "");
    if (event.sent_at) step(event.sent_at, name + " was delivered, after " + failed);
    if (event.dead_at && !event.sent_at) step(event.dead_at, name + " was put aside as dead: " + failed);
    if (event.discarded_at) step(event.discarded_at, name + " was discarded by " + event.discarded_by);
    if (event.state === "pending") step(event.due_at, name + " is due for delivery: " + failed);
  }
  steps.sort((one, other) => (one[0] < other[0] ? -1 : one[0] > other[0] ? 1 : 0));
  const list = make("ol", { class: "story" }, ...steps.map(([time, what]) => make("li", {}, make("time", { datetime: time }, exactly(time)), ...what)));
  const note = record ? [] : [make("p", { class: "odd" }, "The record itself is purged; these are its events.")];
  return make("div", {}, ...note, list);
}

// ---- acting, asked again before

let agreed = null;

function askAgain(title, text, yes, needsReason, act) {
  setText(at("ask-title"), title);
  setText(at("ask-text"), text);
  setText(at("ask-yes"), yes);
  setText(at("ask-error"), "");
  at("why-row").hidden = !needsReason;
  at("why").value = "";
  at("who").value = sessionStorage.getItem("who") || "";
  agreed = act;
  at("ask").showModal();
}

function decide(what, event) {
  const text = "Event " + event.event_id + ", " + event.type + ", of key " + event.idempotency_key + "\n" + (what === "retry" ? "It is sent again, with all attempts before it." : "It is given up for good: kept, with who and when, and never sent.");
  askAgain(what === "retry" ? "Retry this event?" : "Discard this event?", text, what === "retry" ? "Retry" : "Discard", false, async (who) => {
    const done = await ask("outbox/" + what, { ids: [event.event_id], who });
    return done.changed.length === 1 ? "Event " + event.event_id + (what === "retry" ? " will be tried again." : " is discarded.") : "Event " + event.event_id + " was not dead any more: nothing was changed.";
  });
}

function pauseOrResume() {
  const resume = paused;
  const text = resume ? "All daemons deliver events again." : "No daemon delivers an event until somebody resumes. Events are kept and lose no attempt.";
  askAgain(resume ? "Resume deliveries?" : "Pause deliveries?", text, resume ? "Resume" : "Pause", !resume, async (who) => {
    const done = await ask(resume ? "relay/resume" : "relay/pause", resume ? { who } : { who, reason: at("why").value });
    return done.paused ? "Deliveries are paused." : "Deliveries go on.";
  });
}

async function act(submitted) {
  submitted.preventDefault();
  const who = at("who").value.trim();
  sessionStorage.setItem("who", who);
  at("ask-yes").disabled = true;
  try {
    setText(at("acted"), await agreed(who));
    at("ask").close();
    look();
  } catch (error) {
    if (error.status === 401) at("ask").close();
    setText(at("ask-error"), error.message);
  }
  at("ask-yes").disabled = false;
}

// ---- looking again and again

let looking = false;
let timer = 0;

async function look() {
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  try {
    const dead = "outbox?state=dead&limit=20" + (deadBefore === null ? "" : "&before=" + deadBefore);
    status = await ask("status");
    asked = Date.now();
    at("token-form").hidden = true;
    showStatus();
    const [history, recent] = await Promise.all([ask("history"), ask("recent")]);
    showHistory(history.minutes);
    requests = recent.requests;
    showRecent();
    // The rest is still true where the database does not answer.
    showDead(await ask(dead));
    heard = Date.now();
    problem = "";
  } catch (error) {
    if (!(error instanceof Refused)) [problem, status] = ["The daemon does not answer.", null];
    else if (error.status === 401) [problem, status] = ["The daemon asks for the admin token.", null];
    else problem = error.message;
  }
  looking = false;
  showAge();
  timer = setTimeout(look, EVERY);
}

function showAge() {
  const stale = problem !== "" || Date.now() - heard > LATE;
  document.body.classList.toggle("is-stale", stale && heard > 0);
  at("stale").hidden = !stale;
  showHealth(status !== null && Date.now() - asked < LATE);
  if (!stale) return;
  const since = heard === 0 ? "Nothing could be read yet." : "What is shown is of " + new Date(heard).toLocaleTimeString([], TIME) + " and may be wrong by now.";
  setText(at("stale"), (problem + " " + since).trim());
}

function begin() {
  for (const outcome of CHARTS[0][1]) at("outcome").append(make("option", { value: outcome }, outcome));
  at("token-form").addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    sessionStorage.setItem("token", at("token").value);
    at("token").value = "";
    look();
  });
  at("key-form").addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    tellStory();
  });
  for (const [id, event] of [["find", "input"], ["outcome", "change"]]) {
    at(id).addEventListener(event, () => {
      offset = 0;
      showRecent();
    });
  }
  at("newer").addEventListener("click", () => { offset -= ROWS; showRecent(); });
  at("older").addEventListener("click", () => { offset += ROWS; showRecent(); });
  at("dead-first").addEventListener("click", () => turnDead(null));
  at("pause").addEventListener("click", pauseOrResume);
  at("ask-form").addEventListener("submit", act);
  at("ask-no").addEventListener("click", () => at("ask").close());
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  setInterval(showAge, 1000);
  look();
}

begin();
