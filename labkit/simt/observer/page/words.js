// Numbers, threads and steps in words.

function made(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.textContent = text;
  return element;
}

function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

// 0 to 3, 7
function ranges(numbers) {
  const runs = [];
  for (const n of [...new Set(numbers)].sort((a, b) => a - b)) {
    if (runs.length && runs[runs.length - 1][1] === n - 1) runs[runs.length - 1][1] = n;
    else runs.push([n, n]);
  }
  const shown = runs.slice(0, 4).map(([a, b]) => a === b ? `${a}` : `${a}–${b}`);
  return shown.join(", ") + (runs.length > 4 ? ", …" : "");
}

function threadName(t) {
  const [x, y, z] = data.block, place = [t % x, Math.floor(t / x) % y, Math.floor(t / (x * y))];
  return y * z === 1 ? `${t}` : `(${place.slice(0, z === 1 ? 2 : 3).join(", ")})`;
}

function blockName(number) {
  const [x, y, z] = data.grid, place = [number % x, Math.floor(number / x) % y, Math.floor(number / (x * y))];
  return y * z === 1 ? `${number}` : `(${place.slice(0, z === 1 ? 2 : 3).join(", ")})`;
}

// ---------------- a step

function spread(array, elements, width) {
  const sorted = [...new Set(elements.flatMap((e) => Array.from({length: width}, (_, k) => e + k)))].sort((a, b) => a - b);
  if (sorted.length === 1) return array.called(sorted[0]);
  const [first, last] = [sorted[0], sorted[sorted.length - 1]], [a, b] = [array.indexOf(first), array.indexOf(last)];
  if (last - first === sorted.length - 1 && a.slice(0, -1).join() === b.slice(0, -1).join()) return `${array.name}[${[...a.slice(0, -1), `${a[a.length - 1]}…${b[b.length - 1]}`].join(", ")}]`;
  return `${counted(sorted.length, "element")} of ${array.name}`;
}

function sayAccesses(steps, into) {
  const groups = new Map();
  for (const step of steps) for (const request of step.requests) {
    const key = `${request.array.number} ${request.kind}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(request);
  }
  let first = true;
  for (const requests of [...groups.values()].sort((a, b) => (a[0].kind === OUTSIDE) - (b[0].kind === OUTSIDE))) {
    const {array, kind, width} = requests[0];
    if (kind === OUTSIDE) {
      into.append(first ? " " : ". ", made("span", "outside", `${counted(requests.reduce((sum, each) => sum + each.lanes.length, 0), "access").replace("accesss", "accesses")} outside ${array.name}`));
      first = false;
      continue;
    }
    const cost = requests.reduce((sum, each) => sum + each.cost, 0);
    const verb = ["read", "write", "update"][kind];
    const where = spread(array, requests.flatMap((each) => each.elements), width);
    const price = array.space === "global" ? counted(cost, "sector") : cost ? `a ${Math.max(...requests.map((each) => each.cost)) + 1}-way bank conflict` : "";
    into.append(first ? " They " : ", and ", made("span", verb, verb), ` ${where}${price ? ` (${price})` : ""}`);
    first = false;
  }
  if (!first) into.append(".");
}

function say() {
  const steps = shownSteps(), now = $("now");
  now.replaceChildren();
  if (!steps.length) {
    now.append(made("b", "", `Block ${state.block.label} is about to begin`), `: ${counted(state.threads, "thread")} in ${counted(state.warps, "warp")}. Press play, or step with the arrow keys.`);
    return;
  }
  const barrier = steps.find((step) => step.kind === BARRIER), memory = steps.find((step) => step.kind === MEMORY);
  const own = steps.filter((step) => step.kind === STATEMENT || step.kind === COLLECTIVE);
  if (barrier) now.append(made("b", "", `The barrier at line ${data.source[barrier.row][0]} opens`), ": every thread of the block has reached it, and all go on. ");
  if (memory) now.append(made("b", "", "Meanwhile "), `asynchronous copies or other blocks wrote ${memory.writes.map((each) => `${counted(each.elements.length, "element")} of ${each.array.name}`).join(", ")}. `);
  const rows = [...new Set(own.map((step) => step.row))].sort((a, b) => a - b);
  for (const row of rows.slice(0, 3)) {
    const here = own.filter((step) => step.row === row), warps = here.map((step) => step.warp);
    const lanes = here.reduce((sum, step) => sum + lanesOf(step.mask).length, 0);
    const alive = [...new Set(warps)].reduce((sum, warp) => sum + Math.min(32, state.threads - 32 * warp), 0);
    now.append(made("b", "", `Line ${data.source[row][0]}`), `, ${warps.length === 1 ? "warp" : "warps"} ${ranges(warps)}: ${lanes < alive ? `${lanes.toLocaleString("en")} of ${counted(alive, "thread")}` : counted(lanes, "thread")}.`);
    sayAccesses(here, now);
    const waits = here.reduce((sum, step) => sum + lanesOf(step.waits).length, 0), ended = here.reduce((sum, step) => sum + lanesOf(step.ended).length, 0);
    const name = here.find((step) => step.name)?.name;
    if (here[0].kind === COLLECTIVE) now.append(` ${name} gives each of them its result.`);
    else if (waits) now.append(` ${waits === lanes ? "They wait" : `${waits} wait`} at ${name}.`);
    if (ended) now.append(` ${ended === lanes ? "They are" : `${ended} of them are`} done.`);
    now.append(" ");
  }
  if (rows.length > 3) now.append(`And ${counted(rows.length - 3, "line")} more.`);
}
