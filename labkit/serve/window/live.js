// What the server says of the engine, and the controls. The parts of the page that draw it are in the other files.

const $ = (id) => document.getElementById(id);
const made = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};
const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
const ms = (value) => value >= 10000 ? `${(value / 1000).toFixed(0)} s` : value >= 1000 ? `${(value / 1000).toFixed(1)} s`
  : value >= 10 ? `${value.toFixed(0)} ms` : value >= 1 ? `${value.toFixed(1)} ms` : `${(1000 * value).toFixed(0)} µs`;
const shortId = (id) => /^\d+$/.test(id) ? `#${id}` : id.length > 14 ? `…${id.slice(-8)}` : id;
const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };

// --- Requests to the server ------------------------------------------------------------------------------------------

let key = sessionStorage.getItem("labkit-key") || "";
const keyWanted = new Set();  // what goes on as soon as there is a key

async function ask(path, body, signal) {
  const headers = key ? {Authorization: `Bearer ${key}`} : {};
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {method: body ? "POST" : "GET", headers, signal, cache: "no-store",
    body: body ? JSON.stringify(body) : undefined});
  if (response.status === 401) $("key-row").hidden = false;
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    const error = new Error(answer.error?.message || answer.detail || `The server answers ${response.status}.`);
    error.status = response.status;
    error.code = answer.error?.code;
    throw error;
  }
  return response;
}

// The server-sent events of a response: [name, data].
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        let name = "message";
        const data = [];
        for (const line of part.split(/\r?\n/)) {
          if (line.startsWith("event:")) name = line.slice(6).trim();
          if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        }
        if (data.length) yield [name, data.join("\n")];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

$("key-use").addEventListener("click", () => {
  key = $("key").value.trim();
  sessionStorage.setItem("labkit-key", key);
  $("key-row").hidden = true;
  for (const go of keyWanted) go();
  keyWanted.clear();
});
$("key").addEventListener("keydown", (event) => {
  if (event.key === "Enter") { event.preventDefault(); $("key-use").click(); }
});

// --- The engine's state ----------------------------------------------------------------------------------------------

const live = {connected: false, seats: [], waiting: [], waiting_count: 0, pages: 0, page_size: 16, free: 0, step: null,
  tables: new Map(), known: new Uint8Array(0), paused: false, delay_s: 0, long: 0, control: false, selected: null, kernels: null};
const SECONDS = 120;
const history = {bins: [], steps: []};

const unrolled = (runs) => {
  const pages = [];
  for (let at = 0; at < runs.length; at += 2) for (let k = 0; k < runs[at + 1]; k++) pages.push(runs[at] + k);
  return pages;
};

function receive(name, data) {
  if (name === "long") {  // the engine is in a step that takes its time, and nothing else is known
    Object.assign(live, data, {connected: true, long: data.seconds});
    changed();
    return;
  }
  live.long = 0;
  if (name === "whole") live.tables.clear();
  if (live.known.length !== data.pages) live.known = new Uint8Array(data.pages);
  for (const page of unrolled(data.lost)) live.known[page] = 0;
  for (const page of unrolled(data.kept)) live.known[page] = 1;
  const alive = new Set(data.seats.map((seat) => seat.admission));
  for (const admission of live.tables.keys()) if (!alive.has(admission)) live.tables.delete(admission);
  for (const [admission, first, runs] of data.tables) {
    const pages = live.tables.get(admission) || [];
    pages.length = Math.min(first, pages.length);
    pages.push(...unrolled(runs));
    live.tables.set(admission, pages);
  }
  if (live.selected !== null && !alive.has(live.selected)) live.selected = null;
  Object.assign(live, data, {connected: true, tables: live.tables});
  live.seats.sort((a, b) => a.seat - b.seat);
  const kinds = new Map((live.step?.chunks || []).map(([seat, tokens, kind]) => [seat, {tokens, kind}]));
  for (const seat of live.seats) {
    seat.now = kinds.get(seat.seat) || null;
    seat.table = live.tables.get(seat.admission) || [];
    seat.name = `${shortId(seat.id)}${seat.index ? `/${seat.index}` : ""}`;
  }
  remember(data);
  changed();
}

// A bin for each second up to now: no news means that nothing was computed.
function binNow() {
  const second = Math.floor(performance.now() / 1000), {bins} = history;
  let from = bins.length ? bins.at(-1).second + 1 : second;
  if (from < second - SECONDS) from = second - SECONDS;
  for (; from <= second; from++) bins.push({second: from, generated: 0, prompt: 0, preempted: 0, first: [], gap: [], held: live.pages - live.free});
  while (bins[0].second < second - SECONDS) bins.shift();
  return bins.at(-1);
}

function remember(data) {
  const bin = binNow();
  bin.generated += data.sums.generated;
  bin.prompt += data.sums.prompt;
  bin.preempted += data.sums.preempted;
  bin.first.push(...data.sums.first_ms);
  bin.gap.push(...data.sums.gap_ms);
  bin.held = data.pages - data.free;
  history.steps.push(...data.steps);
  history.steps.splice(0, Math.max(0, history.steps.length - 80));
}

// Tokens per second over the last seconds, the present one left out until it is whole.
function rateNow(what) {
  const second = performance.now() / 1000;
  const from = Math.floor(second) - 3;
  return history.bins.filter((bin) => bin.second >= from).reduce((sum, bin) => sum + bin[what], 0) / (second - from);
}

const painters = [];
let asked = false;
function changed() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    for (const paint of painters) paint();
  });
}

let watching = null;
async function watch() {
  let pause = 500;
  while (!document.hidden) {
    watching = new AbortController();
    try {
      const response = await ask("window/events", undefined, watching.signal);
      pause = 500;
      for await (const [name, data] of events(response)) receive(name, JSON.parse(data));
    } catch (error) {
      if (document.hidden) break;
      live.why = error.status ? error.message : "";
      live.loading = error.code === "loading";
      if (error.status === 401) {
        live.connected = false;
        live.wants = true;
        changed();
        await new Promise((go) => keyWanted.add(go));
        live.wants = false;
        continue;
      }
    }
    if (document.hidden) break;
    live.connected = false;
    changed();
    await new Promise((go) => setTimeout(go, pause));
    pause = Math.min(2 * pause, 5000);
  }
  watching = null;
}
// The server takes no pictures for a page that is not looked at.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) watching?.abort();
  else if (!watching) watch();
});

// --- The bar and the controls ----------------------------------------------------------------------------------------

const DELAYS = [0, 0.05, 0.1, 0.25, 0.5, 1, 2];  // seconds

painters.push(() => {
  const idle = !live.seats.length && !live.waiting_count;
  const [is, text] = live.wants ? ["lost", "the server wants an API key: see the chat"]
    : !live.connected ? [live.loading ? "idle" : "lost", live.why || "not connected, trying again"]
    : live.long ? ["runs", `${live.step ? "a long step" : "the first step, kernels compile"}: ${live.long.toFixed(0)} s so far`]
    : live.paused ? ["paused", `paused at step ${(live.step?.number ?? 0).toLocaleString("en")}`]
    : idle ? ["idle", "idle"] : ["runs", live.delay_s ? "slow motion" : "running"];
  if ($("state").dataset.is !== is) $("state").dataset.is = is;
  setText($("state"), text);
  setText($("model"), live.model || "");
  setText($("now-running"), `${live.seats.length}`);
  setText($("now-waiting"), `${live.waiting_count}`);
  setText($("now-rate"), rateNow("generated").toFixed(0));
  const held = live.pages - live.free;
  $("now-pages").value = live.pages ? held / live.pages : 0;
  setText($("now-held"), `${held.toLocaleString("en")} of ${live.pages.toLocaleString("en")}`);
  $("controls").hidden = !live.control;
  $("no-control").hidden = live.control || !live.connected;
  const pause = $("pause");
  pause.setAttribute("aria-pressed", live.paused);
  setText(pause.querySelector("span"), live.paused ? "Resume" : "Pause");
  $("step").disabled = !live.paused || idle;
  if (document.activeElement !== $("slow")) {
    $("slow").value = Math.max(0, DELAYS.findLastIndex((delay) => delay <= live.delay_s + 1e-9));
    showDelay();
  }
});

function showDelay() {
  const delay = DELAYS[$("slow").value];
  const text = delay ? `${delay} s a step` : "off";
  setText($("slow-text"), text);
  $("slow").setAttribute("aria-valuetext", text);
}

function notice(text) {
  setText($("notice"), text);
  $("notice").hidden = !text;
}

async function control(body) {
  try {
    Object.assign(live, await (await ask("window/control", body)).json());
    notice("");
  } catch (error) {
    notice(error.message);
  }
  changed();
}

$("pause").addEventListener("click", () => control({action: live.paused ? "resume" : "pause"}));
$("step").addEventListener("click", () => control({action: "step"}));
$("slow").addEventListener("input", () => {
  showDelay();
  control({action: "delay", delay_s: DELAYS[$("slow").value]});
});
for (const tab of document.querySelectorAll("[data-show]"))
  tab.addEventListener("click", () => {
    document.body.dataset.tab = tab.dataset.show;
    for (const each of document.querySelectorAll("[data-show]")) each.setAttribute("aria-pressed", each === tab);
    changed();
  });
document.querySelector(".skip").addEventListener("click", () => document.querySelector("[data-show=chat]").click());
