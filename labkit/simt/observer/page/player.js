// The page: its controls, its keys, and the faults.

const $ = (id) => document.getElementById(id);
const whole = JSON.parse($("data").textContent);
const orders = [whole, ...whole.orders || []];
let data = whole, arrays = [];
const still = matchMedia("(prefers-reduced-motion: reduce)");
const PLAY = "M2 1l9 5-9 5z", PAUSE = "M2 1h3v10H2zM7 1h3v10H7z";
let state = null, frames = [], at = 0, timer = 0, fault = null, threadGrid = null, grids = [];
let pickedThread = -1;
const letterOf = (k) => fault.sides.length > 1 ? "AB"[k] || "" : "✗";
const pickedCell = new Map();

// ---------------- source

const WORDS = /(#.*)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(def|if|elif|else|for|while|in|return|break|continue|and|or|not|True|False|None|pass|range|assert|is)\b|\b(\d[\w.]*)|(@[\w.]+)/g;

function coloured(text) {
  const code = document.createElement("code");
  let from = 0;
  for (const found of text.matchAll(WORDS)) {
    code.append(text.slice(from, found.index), made("span", ["c", "s", "k", "m", "f"][found.slice(1).findIndex((part) => part !== undefined)], found[0]));
    from = found.index + found[0].length;
  }
  code.append(text.slice(from));
  return code;
}

function fillSource() {
  $("source").replaceChildren(...data.source.map(([line, text]) => {
    const item = made("li", line ? "" : "part");
    item.append(made("span", "n", line || ""), made("span", "w"), coloured(text));
    item.style.setProperty("--indent", text.length - text.trimStart().length);
    return item;
  }));
  $("file").textContent = data.file;
}

function drawSource(states, shown) {
  const here = new Map();
  for (let t = 0; t < state.threads; t++) {
    if (state.done[t] && states[t] !== "running" || state.row[t] < 0) continue;
    const row = state.row[t], warp = t >> 5;
    if (!here.has(row)) here.set(row, new Map());
    const warps = here.get(row);
    if (!warps.has(warp)) warps.set(warp, {lanes: 0, on: false, wait: false});
    const found = warps.get(warp);
    found.lanes++;
    found.on ||= states[t] === "running";
    found.wait ||= states[t] === "waiting";
  }
  const on = new Set(shown.map((step) => step.row));
  const sides = new Map();
  for (const [k, side] of (fault ? fault.sides : []).entries()) {
    if (side.row >= 0) sides.set(side.row, [...sides.get(side.row) || [], letterOf(k)]);
  }
  let first = null;
  foldSource([...sides.keys(), ...on]);
  [...$("source").children].forEach((item, row) => {
    item.classList.toggle("on", on.has(row));
    item.classList.toggle("side", sides.has(row));
    if (on.has(row)) {
      item.setAttribute("aria-current", "step");
      first ||= item;
    } else item.removeAttribute("aria-current");
    const box = item.children[1], chips = (sides.get(row) || []).map((letter) => made("i", "tag", letter));
    const groups = new Map();
    for (const [warp, {on, wait}] of here.get(row) || []) {
      const kind = on ? "on" : wait ? "wait" : "";
      groups.set(kind, [...groups.get(kind) || [], warp]);
    }
    for (const [kind, warps] of groups) {
      const all = warps.length === state.warps && state.warps > 1;
      const chip = made("b", kind, all ? `w0–${state.warps - 1}` : `w${ranges(warps)}`);
      const lanes = warps.reduce((sum, warp) => sum + here.get(row).get(warp).lanes, 0);
      chip.title = `${warps.length === 1 ? "warp" : "warps"} ${ranges(warps)}: ${counted(lanes, "thread")}`;
      chips.push(chip);
    }
    box.replaceChildren(...chips);
  });
  const list = $("source"), both = [...sides.keys()].sort((a, b) => a - b).map((row) => list.children[row]);
  if (both.length > 1) { // both sides of a race are in view
    const [top, end] = [both[0].offsetTop, both[both.length - 1].offsetTop + both[both.length - 1].offsetHeight];
    list.scrollTop = top - Math.max(0, (list.clientHeight - (end - top)) / 2);
  } else if (first) {
    const above = first.offsetTop - 24, below = first.offsetTop + first.offsetHeight + 24 - list.clientHeight;
    if (list.scrollTop > above) list.scrollTop = above;
    else if (list.scrollTop < below) list.scrollTop = below;
  }
}

// Where both sides of a race do not fit into the pane, the lines far from them are left out.
const NEAR = 2;
function foldSource(rows) {
  const list = $("source"), items = [...list.children];
  items.forEach((item) => item.classList.remove("far", "cut"));
  const first = Math.min(...rows), last = Math.max(...rows);
  if (!fault || rows.length < 2 || items[last].offsetTop + items[last].offsetHeight - items[first].offsetTop < list.clientHeight - 8) return;
  items.forEach((item, row) => {
    const far = row > first && row < last && rows.every((each) => Math.abs(each - row) > NEAR);
    item.classList.toggle("far", far);
    if (far && !items[row - 1].classList.contains("far")) item.classList.add("cut");
  });
}

// ---------------- arrays

function fillMemory() {
  $("memory").replaceChildren();
  // arrays that are read, then shared memory, then arrays that are written
  const written = new Set(state.steps.flatMap((step) => step.writes.map((write) => write.array)));
  const rank = (array) => array.space === "shared" ? 1 : written.has(array) ? 2 : 0;
  grids = arrays.filter((array) => array.cells || array.space === "global").sort((a, b) => rank(a) - rank(b)).map((array) => {
    const card = made("section", "card"), head = made("h2"), canvas = made("canvas"), box = made("div", "scroll"), detail = made("p", "detail");
    const name = made("code", "", array.name), cost = made("p", "cost");
    const badge = made("span", `badge ${array.space}`, array.space);
    head.append(name, badge, made("small", "", `${array.shape.join(" × ")} ${array.dtype}${array.clipped ? ", a part" : ""}`));
    box.append(canvas);
    card.append(head, cost, box, detail);
    const outside = data.findings.some((each) => each.kind === "out_of_bounds" && each.sides.some((side) => side.array === array.number));
    const grid = new ArrayGrid(canvas, array, outside);
    Object.assign(grid, {card, cost, detail});
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-label", `${array.name}, ${array.space} memory, ${array.shape.join(" by ")}. The arrow keys move from element to element, Escape ends that.`);
    canvas.setAttribute("aria-describedby", detail.id = `detail-${array.number}`);
    watched(canvas, (x, y) => grid.at(x, y), array.cells, () => grid.cols, (cell) => {
      if (cell === (pickedCell.get(array.number) ?? -1)) return;
      pickedCell.set(array.number, cell);
      describe(grid);
      drawArray(grid);
      drawThreads();
    }, () => pickedCell.get(array.number) ?? -1);
    $("memory").append(card);
    return grid;
  });
}

// The parts of a canvas under the pointer, or under the arrow keys where it has the focus.
function watched(canvas, at, count, cols, pick, picked) {
  canvas.addEventListener("pointermove", (event) => pick(at(event.offsetX, event.offsetY)));
  canvas.addEventListener("pointerdown", (event) => pick(at(event.offsetX, event.offsetY)));
  canvas.addEventListener("mousedown", (event) => event.preventDefault());
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && document.activeElement !== canvas && pick(-1));
  canvas.addEventListener("blur", () => pick(-1));
  canvas.addEventListener("keydown", (event) => {
    const by = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -cols(), ArrowDown: cols()}[event.key];
    if (event.key === "Escape" && picked() >= 0) pick(-1);
    else if (by) pick(picked() < 0 ? 0 : Math.max(0, Math.min(count - 1, picked() + by)));
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

// The threads that touch an element in this step; the cells that a thread touches.
function threadsAt(array, element) {
  const found = requestsOf(shownSteps(), array).flatMap(({step, request}) => request.lanes.filter((_, k) => request.elements[k] <= element && element < request.elements[k] + request.width).map((lane) => 32 * step.warp + lane));
  return [...new Set(found)];
}

function cellsOf(thread, array) {
  const found = requestsOf(shownSteps(), array).filter(({step, request}) => step.warp === thread >> 5 && request.lanes.includes(thread & 31));
  return found.flatMap(({request}) => Array.from({length: request.width}, (_, k) => array.cellOf(request.elements[request.lanes.indexOf(thread & 31)] + k))).filter((cell) => cell >= 0);
}

// Ringed cells: the one under the pointer, and those of the selected thread.
function ringedCells(array) {
  const own = pickedCell.get(array.number) ?? -1;
  return [...own >= 0 ? [own] : [], ...pickedThread >= 0 ? cellsOf(pickedThread, array) : []];
}

function ringedThreads() {
  const others = arrays.flatMap((array) => (pickedCell.get(array.number) ?? -1) >= 0 ? threadsAt(array, array.elementOf(pickedCell.get(array.number))) : []);
  return [...pickedThread >= 0 ? [pickedThread] : [], ...others];
}

function drawThreads() {
  const states = state.states(shownSteps());
  threadGrid.draw(states, threadMarks(), ringedThreads());
  describeThread(states);
}

function describe(grid) {
  const {array} = grid, cell = pickedCell.get(array.number) ?? -1;
  if (cell < 0) {
    grid.detail.textContent = "";
    return;
  }
  const element = array.elementOf(cell), number = array.number, writer = state.writer[number][cell];
  const value = state.known[number][cell] ? (array.type ? ` = ${Number(state.values[number][cell].toPrecision(7))}` : "") : ", nothing written yet";
  const parts = [`${array.called(element)}${value}`];
  if (array.space === "shared") parts.push(`bank ${array.bank(element)}`);
  if (writer >= 0) {
    const step = state.steps[writer];
    const by = step.requests.filter((each) => (each.kind === 1 || each.kind === 2) && each.array === array).flatMap((each) => each.lanes.filter((_, k) => each.elements[k] <= element && element < each.elements[k] + each.width).map((lane) => 32 * step.warp + lane));
    parts.push(`written by ${by.length ? `thread ${threadName(by[by.length - 1])}` : "an asynchronous copy"} at line ${data.source[step.row][0]}`);
  }
  const now = threadsAt(array, element);
  if (now.length) parts.push(`in this step: ${now.length > 6 ? counted(now.length, "thread") : `thread ${now.map(threadName).join(", ")}`}`);
  grid.detail.textContent = parts.join(" · ");
}

// OUTSIDE is no access: there is nothing to light up.
function requestsOf(steps, array) {
  return steps.flatMap((step) => step.requests.filter((each) => each.array === array && each.kind !== OUTSIDE).map((request) => ({step, request})));
}

function litOf(array, steps, before) {
  const lit = {cells: new Map(), sectors: new Map(), trail: new Map(), banks: null};
  let worst = -1;
  const each = (found, see) => {
    for (const {request} of found) {
      const what = [READ, WRITE, UPDATE][request.kind];
      for (const element of request.elements) for (let k = 0; k < request.width; k++) see(element + k, what, request);
    }
  };
  each(requestsOf(before, array), (element, what) => {
    const cell = array.cellOf(element);
    if (cell >= 0) lit.trail.set(cell, lit.trail.get(cell) | what);
  });
  const found = requestsOf(steps, array);
  each(found, (element, what) => {
    const cell = array.cellOf(element);
    if (cell >= 0) lit.cells.set(cell, lit.cells.get(cell) | what);
    if (array.space === "global") {
      const sector = array.address(element) >> 5;
      lit.sectors.set(sector, lit.sectors.get(sector) | what);
    }
  });
  for (const step of steps) {
    if (step.kind !== MEMORY) continue;
    for (const write of step.writes) if (write.array === array) for (const element of write.elements) {
      const cell = array.cellOf(element);
      if (cell >= 0) lit.cells.set(cell, lit.cells.get(cell) | WRITE);
    }
  }
  if (array.space === "shared") {
    for (const {request} of found) {
      if (request.cost <= worst) continue;
      worst = request.cost;
      const words = Array.from({length: 32}, () => new Set());
      for (const element of request.elements) {
        const first = Math.floor(array.address(element) / 4), last = Math.floor((array.address(element) + request.width * array.itemsize - 1) / 4);
        for (let word = first; word <= last; word++) words[word % 32].add(word);
      }
      lit.banks = {counts: words.map((each) => each.size), kind: ["read", "write", "update"][request.kind]};
    }
  }
  return lit;
}

function drawArray(grid) {
  const {array} = grid, steps = shownSteps();
  const lit = litOf(array, steps, at > 1 ? frames[at - 2].steps : []);
  const marks = [];
  for (const [k, side] of (fault ? fault.sides : []).entries()) {
    if (side.array !== array.number) continue;
    const letter = letterOf(k);
    if (side.index) marks.push([grid.beyond(side.index), "✗"]);
    else if (side.element !== null && array.cellOf(side.element) >= 0) {
      const same = marks.find(([place]) => place === array.cellOf(side.element));
      if (same) same[1] += letter;
      else marks.push([array.cellOf(side.element), letter]);
    }
  }
  grid.draw(state, lit, marks, ringedCells(array), state.wrong[array.number]);
  const found = requestsOf(steps, array).map(({request}) => request), cost = found.reduce((sum, each) => sum + each.cost, 0);
  grid.cost.classList.toggle("bad", array.space === "shared" && cost > 0);
  if (!found.length) grid.cost.textContent = "";
  else if (array.space === "global") {
    const wanted = found.reduce((sum, each) => sum + new Set(each.elements).size * each.width * array.itemsize, 0);
    grid.cost.textContent = `${counted(cost, "sector")}, ${Math.round(100 * Math.min(1, wanted / (32 * cost)))}% used`;
  } else grid.cost.textContent = cost ? `${Math.max(...found.map((each) => each.cost)) + 1}-way bank conflict` : "no bank conflict";
}

// ---------------- faults

function fillFaults() {
  const count = data.findings.length;
  $("to-fault").hidden = !count;
  $("help-fault").hidden = !count;
  $("to-fault").textContent = count === 1 ? `${data.findings[0].title}: show it` : `${counted(count, "fault")}: show the first`;
}

function showFault(number) {
  fault = number === null ? null : data.findings[number];
  const card = $("fault-card");
  card.hidden = !fault;
  card.replaceChildren();
  if (!fault) {
    show(at);
    return;
  }
  const head = made("h2");
  head.append(made("span", "", data.findings.length > 1 ? `${fault.title} (${number + 1} of ${data.findings.length})` : fault.title));
  const close = made("button", "quiet", "Close");
  close.type = "button";
  close.addEventListener("click", () => {
    showFault(null);
    $("to-fault").focus();
  });
  if (data.findings.length > 1) {
    const next = made("button", "quiet", "Next fault");
    next.type = "button";
    next.addEventListener("click", () => {
      showFault((number + 1) % data.findings.length);
      $("fault-card").querySelector("button").focus();
    });
    head.append(next);
  }
  head.append(close);
  const sides = made("div", "sides");
  fault.sides.forEach((side, k) => {
    const button = made("button"), words = made("span");
    button.type = "button";
    const index = side.index ? `[${side.index.join(", ")}]` : side.element !== null && side.array >= 0 ? arrays[side.array].called(side.element).slice(arrays[side.array].name.length) : "";
    const what = side.array >= 0 ? ` ${arrays[side.array].name}${index}` : "";
    const where = data.grid.join() === "1,1,1" ? "" : ` of block ${blockName(side.block)}`;
    words.append(`thread ${threadName(side.thread)}${where} ${side.verb}${what}`, made("small", "", `line ${side.line}${side.row >= 0 ? `: ${data.source[side.row][1].trim()}` : ""}`));
    button.append(made("i", "", letterOf(k)), words);
    button.disabled = side.step === null || !data.blocks.some((each) => each.number === side.block);
    button.addEventListener("click", () => goToSide(side));
    sides.append(button);
  });
  const played = made("div", "orders");
  if (orders.length > 1) orders.forEach((order, k) => {
    const button = made("button", "", k ? order.name : "As recorded: in turns");
    button.type = "button";
    button.setAttribute("aria-pressed", data === order);
    button.addEventListener("click", () => {
      setOrder(k);
      $("fault-card").querySelector("[aria-pressed=true]")?.focus();
      start();
    });
    played.append(button);
  });
  card.append(head, made("p", "", fault.text.replace(/^race: /, "").replace(/^./, (letter) => letter.toUpperCase())), sides);
  if (orders.length > 1) card.append(played, made("p", "order-text", data.text || ""));
  const reached = fault.sides.filter((side) => side.step !== null && data.blocks.some((each) => each.number === side.block));
  const own = reached.filter((side) => side.block === state.block.number);
  if (reached.length) goToSide((own.length ? own : reached).slice(-1)[0]);
  else show(at);
}

function goToSide(side) {
  stop();
  const block = data.blocks.findIndex((each) => each.number === side.block);
  if (data.blocks[block] !== state.block) open(block);
  show(frames.findIndex((frame) => frame.end > side.step) + 1);
}

// Plays the launch in another order of the warps, from its beginning, with both sides of the race in view.
function setOrder(number) {
  stop();
  const speed = $("speed").value;
  load(orders[number]);
  const race = data.findings.findIndex((each) => each.kind === "race");
  showFault(race < 0 ? null : race);
  $("speed").value = speed;
  show(0);
}

// ---------------- time

function shownSteps() {
  return at ? frames[at - 1].steps : [];
}

function fillFrames() {
  const all = $("unit").value === "all" && state.warps > 1;
  frames = [];
  for (const step of state.steps) {
    if (all && frames.length && !step.begins && step.kind !== BARRIER && frames[frames.length - 1].steps[0].kind !== BARRIER) frames[frames.length - 1].steps.push(step);
    else frames.push({steps: [step]});
    frames[frames.length - 1].end = step.number + 1;
  }
  $("time").max = frames.length;
}

function show(number) {
  at = Math.max(0, Math.min(frames.length, number));
  state.seek(at ? frames[at - 1].end : 0);
  $("time").value = at;
  $("time").setAttribute("aria-valuetext", `step ${at} of ${frames.length}`);
  $("count").textContent = `step ${at.toLocaleString("en")} of ${frames.length.toLocaleString("en")}`;
  $("first").disabled = $("back").disabled = at === 0;
  $("forward").disabled = $("last").disabled = at === frames.length;
  draw();
}

// [thread, letter] of the sides of the fault that are in this block.
function threadMarks() {
  const marks = (fault ? fault.sides : []).map((side, k) => [side, letterOf(k)]);
  return marks.filter(([side]) => side.block === state.block.number).map(([side, letter]) => [side.thread, letter]);
}

function draw() {
  const steps = shownSteps(), states = state.states(steps);
  const tally = {};
  for (const each of states) tally[each] = (tally[each] || 0) + 1;
  const words = {running: "running", ready: "ready", waiting: "waiting", masked: "masked off", done: "done"};
  const summary = Object.keys(words).filter((name) => tally[name]).map((name) => `${tally[name]} ${words[name]}`).join(", ");
  $("threads-note").textContent = summary;
  $("threads").setAttribute("aria-label", `Threads of block ${state.block.label}: ${summary}. The arrow keys move from thread to thread, Escape ends that.`);
  drawThreads();
  drawSource(states, steps);
  for (const grid of grids) {
    drawArray(grid);
    describe(grid);
  }
  say();
  const faults = (fault ? fault.sides : data.findings.flatMap((each) => each.sides.slice(-1))).filter((side) => side.block === state.block.number && side.step !== null).map((side) => frames.findIndex((frame) => frame.end > side.step));
  drawMap($("map"), frames, state.warps, at - 1, faults);
}

function describeThread(states) {
  if (pickedThread < 0) {
    $("threads-detail").textContent = "";
    return;
  }
  const t = pickedThread, parts = [`thread ${threadName(t)}, lane ${t % 32} of warp ${t >> 5}: ${states[t] === "ready" ? "its turn comes" : states[t] === "masked" ? "masked off" : states[t]}`];
  if (state.row[t] >= 0) parts.push(`last at line ${data.source[state.row[t]][0]}`);
  for (const step of shownSteps()) if (step.warp === t >> 5) for (const request of step.requests) {
    const k = request.lanes.indexOf(t % 32);
    if (k >= 0 && request.kind !== OUTSIDE) parts.push(`${["reads", "writes", "updates"][request.kind]} ${request.array.called(request.elements[k])}`);
  }
  $("threads-detail").textContent = parts.join(" · ");
}

function stop() {
  clearTimeout(timer);
  timer = 0;
  $("play").setAttribute("aria-label", "Play");
  $("play").title = "Play (space)";
  $("play").querySelector("path").setAttribute("d", PLAY);
  $("now").removeAttribute("aria-live");
}

function start() {
  if (at === frames.length) show(0);
  $("play").setAttribute("aria-label", "Pause");
  $("play").title = "Pause (space)";
  $("play").querySelector("path").setAttribute("d", PAUSE);
  $("now").setAttribute("aria-live", "off");
  const tick = () => {
    show(at + 1);
    if (at === frames.length) stop();
    else timer = setTimeout(tick, 1000 / $("speed").value);
  };
  timer = setTimeout(tick, 150);
}

function toBarrier(by) {
  for (let k = at + by; k > 0 && k <= frames.length; k += by) {
    if (frames[k - 1].steps.some((step) => step.kind === BARRIER)) return k;
  }
  return by < 0 ? 0 : frames.length;
}

function keyed(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.tagName === "SELECT") return;
  const moves = {ArrowRight: () => at + 1, ArrowUp: () => at + 1, ArrowLeft: () => at - 1, ArrowDown: () => at - 1, Home: () => 0, End: () => frames.length,
                 PageUp: () => toBarrier(-1), PageDown: () => toBarrier(1)};
  if (event.target.id === "source" && /^(Arrow(Up|Down)|Page)/.test(event.key)) return;
  if (event.key in moves) {
    stop();
    show(moves[event.key]());
  } else if (event.key === " " && event.target.tagName !== "BUTTON") {
    if (timer) stop();
    else start();
  } else if (event.key === "f" && data.findings.length) showFault(fault ? data.findings.indexOf(fault) : 0);
  else if (event.key === "Escape" && fault) showFault(null);
  else return;
  event.preventDefault();
}

// ---------------- the page

function open(number) {
  state = new BlockState(data, data.blocks[number], arrays);
  $("block").value = number;
  if (!grids.length) fillMemory();
  threadGrid = new ThreadGrid($("threads"), data.block);
  pickedThread = -1;
  fillFrames();
  layout();
}

function layout() {
  const inside = (element) => element.clientWidth - parseFloat(getComputedStyle(element).paddingLeft) - parseFloat(getComputedStyle(element).paddingRight);
  threadGrid.layout(inside($("threads").closest(".card")));
  const room = $("memory").clientWidth, gap = 10;
  // How many rows of cards it takes if arrays are so high: the higher, the better, as long as one row is enough.
  const rows = (tallest) => {
    let count = 1, used = 0;
    for (const grid of grids) {
      grid.layout(room - 26, tallest);
      const width = Math.min(room, Math.max(room < 500 ? 150 : 196, grid.width + 26));
      grid.card.style.width = `${width}px`;
      if (used && used + width > room) [count, used] = [count + 1, 0];
      used += width + gap;
    }
    return count;
  };
  const lowest = room < 500 ? 130 : 200; // on a phone two matrices stand side by side
  rows([350, 290, 240].find((tallest) => room >= 500 && rows(tallest) === 1) || lowest);
}

// In a frame of a page of the same origin: as high as its content, and as light or dark as JupyterLab.
function theme() {
  let dark = matchMedia("(prefers-color-scheme: dark)").matches;
  try {
    const light = window.parent !== window ? window.parent.document.body.dataset.jpThemeLight : undefined;
    if (light !== undefined) dark = light === "false";
  } catch (error) { /* another origin */ }
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  readColours();
}

function fit() {
  try {
    if (window.frameElement) window.frameElement.style.height = `${Math.ceil(document.body.getBoundingClientRect().height) + 1}px`;
  } catch (error) { /* another origin: it scrolls */ }
}

// Shows one recording: the launch as it was recorded, or a race in another order.
function load(order) {
  data = order;
  arrays = data.arrays.map((about, number) => new ArrayView(number, about));
  [grids, fault, pickedThread] = [[], null, -1];
  pickedCell.clear();
  $("block").replaceChildren(...data.blocks.map((block, k) => {
    const option = made("option", "", block.label);
    option.value = k;
    return option;
  }));
  $("block-label").hidden = data.blocks.length < 2;
  $("notes").textContent = data.notes.join(" ");
  $("wrong-legend").hidden = !Object.keys(data.wrong).length;
  fillSource();
  fillFaults();
  open(data.first);
}

theme();
$("kernel").textContent = data.kernel;
const size = (shape) => shape.filter((n, k) => k === 0 || shape.slice(k).some((m) => m > 1)).join(" × ");
$("launch").textContent = `${size(data.grid)} ${product(data.grid) > 1 ? "blocks" : "block"} of ${size(data.block)} ${product(data.block) > 1 ? "threads" : "thread"}`;
$("unit-label").hidden = product(data.block) <= 32;
if (still.matches) $("speed").value = "1";
load(whole);
show(0);

watched($("threads"), (x, y) => threadGrid.at(x, y), product(data.block), () => threadGrid.cols, (t) => {
  if (t === pickedThread) return;
  pickedThread = t;
  drawThreads();
  grids.forEach(drawArray);
}, () => pickedThread);
$("play").addEventListener("click", () => timer ? stop() : start());
for (const [id, to] of [["first", () => 0], ["back", () => at - 1], ["forward", () => at + 1], ["last", () => frames.length]]) {
  $(id).addEventListener("click", () => {
    stop();
    show(to());
  });
}
$("time").addEventListener("input", () => {
  stop();
  show(Number($("time").value));
});
$("block").addEventListener("change", () => {
  stop();
  open(Number($("block").value));
  show(0);
});
$("unit").addEventListener("change", () => {
  const end = at ? frames[at - 1].end : 0;
  stop();
  fillFrames();
  show(end ? frames.findIndex((frame) => frame.end >= end) + 1 : 0);
});
$("to-fault").addEventListener("click", () => showFault(fault ? data.findings.indexOf(fault) : 0));
document.addEventListener("keydown", keyed);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  theme();
  draw();
});
new MutationObserver(() => { // the page around it was made light or dark
  readColours();
  draw();
}).observe(document.documentElement, { attributeFilter: ["data-theme"] });
let wide = 0;
new ResizeObserver(() => {
  if (document.body.clientWidth !== wide) {
    wide = document.body.clientWidth;
    layout();
    draw();
  }
  fit();
}).observe(document.body);
