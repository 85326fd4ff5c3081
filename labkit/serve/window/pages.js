// Seats, their rows of the page table, the queue, and the map of all pages.

const SEAT_COLOURS = 8;
let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "panel", "line", "edge", "ink", "soft", "accent", "cached", "free", "decode", "prefill", "held", "preempted",
    ...Array.from({length: SEAT_COLOURS}, (_, k) => `s${k}`)];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  colours.fill = Number(style.getPropertyValue("--fill"));
  colours.sans = style.getPropertyValue("--sans");
}
const colourOf = (seat) => colours[`s${seat % SEAT_COLOURS}`];

// A canvas as sharp as the screen, its context in CSS pixels. True where it was resized, and so is empty.
function fit(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const wide = canvas.clientWidth;
  if (height && canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  const tall = height || canvas.clientHeight;
  const fresh = canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(tall * ratio);
  if (fresh) { canvas.width = Math.round(wide * ratio); canvas.height = Math.round(tall * ratio); }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [ctx, wide, tall, fresh];
}

// As in the lesson: filled as far as there are tokens, a stripe for each holder, a bold frame where there are several.
// cell: {seats, part, written, known, dim, text}
function drawCell(ctx, x, y, wide, tall, cell) {
  ctx.globalAlpha = 1;
  ctx.fillStyle = colours.paper;
  ctx.fillRect(x - 1, y - 1, wide + 2, tall + 2);
  ctx.globalAlpha = cell.dim ? 0.22 : 1;
  const several = cell.seats.length > 1, small = tall < 8;
  if (!cell.seats.length && cell.known) {
    ctx.fillStyle = colours.cached;
    ctx.fillRect(x, y, wide, tall);
    if (tall >= 11) {
      ctx.fillStyle = colours.soft;
      ctx.fillRect(x + wide / 2 - 1, y + tall / 2 - 1, 2, 2);
    }
  }
  const shown = cell.seats.slice(0, 4);
  shown.forEach((seat, at) => {
    const top = y + (at * tall) / shown.length, high = tall / shown.length, part = small ? wide : wide * cell.part;
    const before = ctx.globalAlpha;
    ctx.fillStyle = colourOf(seat);
    if (!small) {
      ctx.globalAlpha = before * colours.fill * 0.25;
      ctx.fillRect(x, top, wide, high);
    }
    ctx.globalAlpha = before * (small ? (cell.written ? 1 : 0.7) : colours.fill);
    ctx.fillRect(x, top, part, high);
    ctx.globalAlpha = before;
    if (seat >= SEAT_COLOURS && tall >= 11) texture(ctx, x, top, part, high, Math.floor(seat / SEAT_COLOURS));
  });
  if (several && small && tall >= 3) {
    ctx.fillStyle = colours.ink;
    ctx.fillRect(x, y, wide, Math.max(1, tall / 4));
  }
  if (cell.written && !small) {
    ctx.fillStyle = colours.ink;
    ctx.fillRect(x, y + tall - Math.max(2, tall / 8), wide, Math.max(2, tall / 8));
  }
  if (!small) {
    const line = several ? (tall >= 14 ? 2 : 1.5) : 0.8;
    ctx.strokeStyle = several ? colours.ink : cell.seats.length || cell.known ? colours.edge : colours.free;
    ctx.lineWidth = line;
    ctx.strokeRect(x + line / 2, y + line / 2, wide - line, tall - line);
  } else if (!cell.seats.length && !cell.known) {
    ctx.fillStyle = colours.line;
    ctx.fillRect(x, y, wide, tall);
  }
  if (cell.text) {
    ctx.fillStyle = colours.ink;
    ctx.font = `${several ? "700 " : ""}${Math.min(11.5, Math.max(9, tall * 0.52))}px ${colours.sans}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillText(cell.text, x + wide / 2, y + tall / 2 + 0.5 - (cell.written && tall < 20 ? 1 : 0), wide - 2);
  }
  ctx.globalAlpha = 1;
}

// Beyond eight seats colours come again: with lines, one way, the other, then both.
function texture(ctx, x, y, wide, tall, round) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, wide, tall);
  ctx.clip();
  ctx.strokeStyle = colours.paper;
  ctx.globalAlpha *= 0.75;
  ctx.lineWidth = 1.2;
  ctx.beginPath();
  for (let at = -tall; at < wide; at += 5) {
    if (round % 3 !== 2) { ctx.moveTo(x + at, y + tall); ctx.lineTo(x + at + tall, y); }
    if (round % 3 !== 1) { ctx.moveTo(x + at, y); ctx.lineTo(x + at + tall, y + tall); }
  }
  ctx.stroke();
  ctx.restore();
}

// --- Who holds what --------------------------------------------------------------------------------------------------

// first and number: of each page one holder, as its place in live.seats (-1: none), and which of its pages it is.
// others: page -> [holder, number] of the rest.
const held = {first: new Int32Array(0), number: new Int32Array(0), others: new Map(), written: new Uint8Array(0)};

function findHolders() {
  if (held.first.length !== live.pages) {
    held.first = new Int32Array(live.pages);
    held.number = new Int32Array(live.pages);
    held.written = new Uint8Array(live.pages);
  }
  held.first.fill(-1);
  held.written.fill(0);
  held.others.clear();
  live.seats.forEach((seat, at) => {
    seat.table.forEach((page, number) => {
      if (held.first[page] < 0) {
        held.first[page] = at;
        held.number[page] = number;
      } else if (held.others.has(page)) held.others.get(page).push([at, number]);
      else held.others.set(page, [[at, number]]);
    });
    if (seat.now) {
      const begin = Math.floor((seat.computed - seat.now.tokens) / live.page_size);
      for (let number = begin; number * live.page_size < seat.computed; number++)
        if (seat.table[number] !== undefined) held.written[seat.table[number]] = 1;
    }
  });
}

const holders = (page) => held.first[page] < 0 ? [] : [[held.first[page], held.number[page]], ...(held.others.get(page) || [])];
const tokensIn = (seat, number) => Math.min(live.page_size, Math.max(0, seat.computed - number * live.page_size));

function cellOf(page) {
  const owners = holders(page);
  const seats = owners.map(([at]) => live.seats[at].seat);
  const part = Math.max(0, ...owners.map(([at, number]) => tokensIn(live.seats[at], number))) / live.page_size;
  const dim = live.selected !== null && !owners.some(([at]) => live.seats[at].admission === live.selected);
  return {seats, part, written: held.written[page], known: live.known[page], dim,
    text: seats.length > 1 ? `×${seats.length}` : seats.length ? `${seats[0]}` : ""};
}

const signature = (cell) => {
  let mixed = cell.seats.length + 131 * cell.written + 257 * cell.known + 521 * cell.dim + 1031 * Math.round(cell.part * live.page_size);
  for (const seat of cell.seats) mixed = (Math.imul(mixed, 31) + seat + 7) | 0;
  return mixed || 1;
};

// --- The map ---------------------------------------------------------------------------------------------------------

const map = {canvas: $("map"), cursor: -1, drawn: new Int32Array(0), size: 0, pitch: 0, columns: 1, gutter: 42, sizes: ""};

function layOut(wide) {
  const limit = wide < 520 ? 430 : 320;
  for (const size of [26, 22, 18, 15, 12, 9, 7, 5, 4, 3, 2, 1]) {
    const gap = size >= 15 ? 3 : size >= 9 ? 2 : size >= 4 ? 1 : 0;
    const fits = Math.max(1, Math.floor((wide - map.gutter) / (size + gap)));
    const columns = fits > 16 ? fits - (fits % 8) : fits;
    const pitch = Math.min(Math.floor((wide - map.gutter) / columns), size + gap + 5);  // the width is used up
    if (Math.ceil(live.pages / columns) * pitch <= limit || size === 1) return {size: pitch - gap, pitch, columns};
  }
}

painters.push(function paintMap() {
  findHolders();
  const {canvas} = map;
  const shared = held.others.size;
  const inUse = live.pages - live.free;
  setText($("pages-note"), live.pages ? `${count(live.pages, "page")} of ${live.page_size} tokens: ${inUse.toLocaleString("en")} held, `
    + `${shared.toLocaleString("en")} of them by several sequences; ${live.cached.toLocaleString("en")} in the prefix cache` : "");
  if (!live.pages || !canvas.clientWidth) return;
  map.gutter = live.pages > 9999 ? 54 : 42;
  Object.assign(map, layOut(canvas.clientWidth));
  const lines = Math.ceil(live.pages / map.columns);
  const [ctx, wide, tall, fresh] = fit(canvas, Math.max(map.pitch, lines * map.pitch));
  const sizes = `${map.size} ${map.columns} ${live.pages}`;
  if (fresh || sizes !== map.sizes || map.drawn.length !== live.pages) {
    map.sizes = sizes;
    map.drawn = new Int32Array(live.pages);
    ctx.clearRect(0, 0, wide, tall);
    ctx.fillStyle = colours.soft;
    ctx.font = `10.5px ${colours.sans}`;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    const every = Math.ceil(14 / map.pitch);
    for (let line = 0; line < lines; line += every) if (!line || line * map.pitch < tall - 5)
      ctx.fillText((line * map.columns).toLocaleString("en"), map.gutter - 7, line * map.pitch + Math.max(map.size, 9) / 2);
  }
  for (let page = 0; page < live.pages; page++) {
    const cell = cellOf(page);
    const now = signature(cell) ^ (page === map.cursor ? 0x5bd1e995 : 0);
    if (map.drawn[page] === now) continue;
    map.drawn[page] = now;
    const [x, y] = place(page);
    if (map.size < 16) cell.text = "";
    drawCell(ctx, x, y, map.size, map.size, cell);
    if (page === map.cursor) {
      ctx.strokeStyle = colours.accent;
      ctx.lineWidth = 2;
      ctx.strokeRect(x, y, map.size, map.size);
    }
  }
  describe();
});

const place = (page) => [map.gutter + (page % map.columns) * map.pitch, Math.floor(page / map.columns) * map.pitch];

function pageAt(event) {
  const box = map.canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - map.gutter) / map.pitch);
  const page = Math.floor((event.clientY - box.top) / map.pitch) * map.columns + column;
  return column >= 0 && column < map.columns && page < live.pages ? page : -1;
}

function pageText(page) {
  const owners = holders(page);
  const known = live.known[page] ? " The prefix cache knows it." : "";
  if (!owners.length) return `Page ${page}: free${live.known[page] ? ", and still in the prefix cache: a prompt that begins alike finds it." : "."}`;
  const words = owners.slice(0, 6).map(([at, number]) => {
    const seat = live.seats[at], here = tokensIn(seat, number), begin = number * live.page_size;
    return here ? `seat ${seat.seat} (request ${seat.name}), tokens ${begin} to ${begin + here - 1}` : `seat ${seat.seat} (request ${seat.name}), reserved`;
  });
  const more = owners.length > 6 ? `, and ${owners.length - 6} more` : "";
  return `Page ${page}${owners.length > 1 ? `, shared by ${owners.length}` : ""}: ${words.join("; ")}${more}.${known}`;
}

function describe() {
  setText($("page-detail"), map.cursor >= 0 && map.cursor < live.pages ? pageText(map.cursor)
    : "Point at a page, or move with the arrow keys, to see who holds it.");
}

function point(page) {
  if (page === map.cursor) return;
  map.cursor = page;
  changed();
}

function select(admission) {
  live.selected = live.selected === admission ? null : admission;
  changed();
}

map.canvas.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(pageAt(event)); });
map.canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && document.activeElement !== map.canvas) point(-1); });
map.canvas.addEventListener("click", (event) => {
  const page = pageAt(event), same = page === map.cursor;
  point(page);
  const owners = page < 0 ? [] : holders(page);
  if (owners.length && (event.pointerType !== "touch" || same)) select(live.seats[owners[0][0]].admission);
});
map.canvas.addEventListener("focus", () => { if (map.cursor < 0) point(0); });
map.canvas.addEventListener("keydown", (event) => {
  const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map.columns, ArrowDown: map.columns, Home: -map.cursor,
    End: live.pages - 1 - map.cursor}[event.key];
  if (by !== undefined) {
    event.preventDefault();
    point(Math.min(live.pages - 1, Math.max(0, map.cursor + by)));
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    const owners = holders(map.cursor);
    if (owners.length) {  // one holder after the other, then none
      const at = owners.findIndex(([owner]) => live.seats[owner].admission === live.selected);
      live.selected = at + 1 < owners.length ? live.seats[owners[at + 1][0]].admission : null;
      changed();
    }
  }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && live.selected !== null) select(live.selected); });

// --- Seats and queue -------------------------------------------------------------------------------------------------

const rows = new Map();  // admission -> its row

function newRow(admission) {
  const row = made("li", "seat"), who = made("button", "who"), chip = made("span", "chip"), name = made("span", "id");
  const kind = made("span", "kind"), strip = made("canvas"), counted = made("span", "count");
  who.type = "button";
  who.append(chip, name);
  who.addEventListener("click", () => select(admission));
  strip.setAttribute("role", "img");
  row.append(who, kind, strip, counted);
  return {row, who, chip, name, kind, strip, counted, drawn: ""};
}

painters.push(function paintSeats() {
  const list = $("seats"), free = live.max_num_seqs - live.seats.length || 0;
  for (const [admission, parts] of rows)
    if (!live.tables.has(admission)) {
      parts.row.remove();
      rows.delete(admission);
    }
  live.seats.forEach((seat, at) => {
    if (!rows.has(seat.admission)) rows.set(seat.admission, newRow(seat.admission));
    const parts = rows.get(seat.admission);
    if (list.children[at] !== parts.row) list.insertBefore(parts.row, list.children[at] || null);
    const kind = seat.now?.kind || "idle";
    if (parts.row.dataset.kind !== kind) parts.row.dataset.kind = kind;
    if (parts.chip.textContent !== `${seat.seat}`) parts.chip.style.setProperty("--c", `var(--s${seat.seat % SEAT_COLOURS})`);
    setText(parts.chip, `${seat.seat}`);
    setText(parts.name, seat.name);
    parts.who.title = `Request ${seat.id}`;
    parts.who.setAttribute("aria-label", `Seat ${seat.seat}, request ${seat.name}: show its pages alone`);
    parts.who.setAttribute("aria-pressed", live.selected === seat.admission);
    setText(parts.kind, kind === "prefill" ? `prefill ${seat.now.tokens}` : kind === "decode" ? "decode" : "not in this step");
    setText(parts.counted, `${seat.prompt} + ${seat.output} of ${seat.most}${seat.found ? `, ${seat.found} cached` : ""}`);
    parts.counted.title = `${seat.prompt} tokens of the prompt, ${seat.found} of them found in the prefix cache; ${seat.output} of at most ${seat.most} generated`;
    paintStrip(parts, seat);
  });
  let last = list.lastElementChild;
  if (!last?.classList.contains("free")) list.append(last = made("li", "free"));
  else if (last !== list.children[live.seats.length]) list.append(last);
  setText(last, !live.seats.length ? "All seats are free. Send a message, or run the demo."
    : free ? `${count(free, "seat")} free` : "");
  last.hidden = !last.textContent;
  setText($("seats-note"), live.max_num_seqs ? `${live.seats.length} of ${live.max_num_seqs} taken` : "");
  paintQueue();
});

function paintStrip(parts, seat) {
  if (!parts.strip.clientWidth) return;
  const cells = seat.table.map(cellOf);
  const sign = `${cells.map(signature).join(",")} ${parts.strip.clientWidth} ${seat.table.length}`;
  const [ctx, wide, tall, fresh] = fit(parts.strip);
  if (!fresh && sign === parts.drawn) return;
  parts.drawn = sign;
  parts.strip.setAttribute("aria-label", `${count(cells.length, "page")}, ${cells.filter((cell) => cell.seats.length > 1).length} shared`);
  ctx.clearRect(0, 0, wide, tall);
  const pitch = Math.min(29, wide / Math.max(1, cells.length));
  const size = pitch >= 8 ? pitch - 3 : pitch >= 4 ? pitch - 1 : pitch;
  cells.forEach((cell, number) => {
    cell.text = size >= 20 ? `${seat.table[number]}` : "";
    cell.dim = false;
    drawCell(ctx, 1 + number * pitch, 1, size, tall - 2, cell);
  });
}

let queueShown = "";
function paintQueue() {
  const now = JSON.stringify([live.waiting, live.waiting_count]);
  if (now === queueShown) return;
  queueShown = now;
  const items = live.waiting.map((one) => {
    const item = made("li", one.again ? "again" : ""), id = made("code", "", shortId(one.id) + (one.index ? `/${one.index}` : ""));
    item.append(one.again ? "↺ " : "", id, ` · ${count(one.prompt + one.output, "token")}`);
    item.title = one.again ? `Preempted: it gave its pages back and is computed again, ${one.prompt + one.output} tokens`
      : `${one.prompt} tokens of a prompt`;
    return item;
  });
  const rest = live.waiting_count - live.waiting.length;
  if (rest > 0) items.push(made("li", "note", `and ${rest} more`));
  if (!items.length) items.push(made("li", "note", "No request waits."));
  else items.unshift(made("li", "note", "next:"));
  $("queue").replaceChildren(...items);
}

// --- The legend's samples, and what makes everything be drawn again ---------------------------------------------------

const SAMPLES = {held: {seats: [2], part: 0.7, text: "2"}, written: {seats: [0], part: 0.4, written: 1, text: "0"},
  shared: {seats: [0, 1, 3], part: 1, text: "×3"}, cached: {seats: [], known: 1}, free: {seats: [], known: 0}};

function drawAllAgain() {
  readColours();
  map.sizes = "";
  queueShown = "";
  for (const parts of rows.values()) parts.drawn = "";
  for (const canvas of document.querySelectorAll("[data-sample]")) {
    const [ctx, wide, tall] = fit(canvas);
    if (wide) drawCell(ctx, 1, 1, wide - 2, tall - 2, {part: 0, written: 0, known: 0, dim: false, text: "", ...SAMPLES[canvas.dataset.sample]});
  }
  changed();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAllAgain);
addEventListener("resize", drawAllAgain);
for (const tab of document.querySelectorAll("[data-show]")) tab.addEventListener("click", () => requestAnimationFrame(drawAllAgain));
