// The step that is being computed, and what was, over time.

// --- This step -------------------------------------------------------------------------------------------------------

let stepShown = "";
painters.push(function paintStep() {
  const chunks = (live.seats.length && live.step?.chunks) || [];
  const sum = (kind) => chunks.reduce((total, chunk) => total + (!kind || chunk[2] === kind ? chunk[1] : 0), 0);
  const of = (kind) => chunks.filter((chunk) => chunk[2] === kind).length;
  const now = JSON.stringify([live.step?.number, chunks, live.paused]);
  if (now !== stepShown) {
    stepShown = now;
    const idle = !chunks.length;
    setText($("step-note"), !live.step ? "" : idle ? `step ${live.step.number.toLocaleString("en")} was the last`
      : `step ${live.step.number.toLocaleString("en")}: ${count(sum(), "token")} of at most ${live.budget.toLocaleString("en")}, ${ms(1000 * live.step.seconds)}`);
    const text = idle ? "Nothing is being computed." : `Decode: ${count(sum("decode"), "token")}. Prefill: `
      + `${count(sum("prefill"), "token")} of ${count(of("prefill"), "prompt")}.`;
    $("step-bar").setAttribute("aria-label", text);
    $("step-bar").replaceChildren(...piecesOf(chunks, sum(), of("decode")));
    setText($("step-decode"), `decode: ${count(sum("decode"), "sequence")}, one token each`);
    setText($("step-prefill"), `prefill: ${count(sum("prefill"), "token")} of ${count(of("prefill"), "prompt")}`);
  }
  paintKernels();
  paintSteps();
});

// A piece for each sequence; those that decode are one piece where they are many.
function piecesOf(chunks, total, decoding) {
  const parts = chunks.filter(([, , kind]) => kind === "prefill" || decoding <= 16).sort((a, b) => (a[2] === b[2] ? a[0] - b[0] : a[2] === "decode" ? -1 : 1)).slice(0, 64);
  if (decoding > 16) parts.unshift([null, decoding, "decode"]);
  if (!parts.length) return [made("span", "rest", "nothing to compute")];
  return parts.map(([seat, tokens, kind]) => {
    const label = seat === null ? `${decoding} sequences` : tokens / total > 0.035 || parts.length <= 12 ? `${seat}` : "";
    const piece = made("span", kind, label);
    piece.style.setProperty("--c", seat === null ? "var(--decode)" : `var(--s${seat % SEAT_COLOURS})`);
    piece.style.flexGrow = tokens;
    piece.style.flexBasis = parts.length <= 12 ? "1.1rem" : "3px";
    piece.title = `${seat === null ? label : `seat ${seat}`}: ${kind}, ${count(tokens, "token")}`;
    return piece;
  });
}

let kernelsShown;
function paintKernels() {
  if (!live.step || live.kernels === kernelsShown) return;
  kernelsShown = live.kernels;
  setText($("kernels-note"), live.kernels?.note || "");
  if (!live.kernels) {
    $("kernels").replaceChildren(made("p", "soft", "This runner does not say what it launches."));
    return;
  }
  const list = made("ol"), most = Math.max(...live.kernels.rows.map((row) => row.share), 1e-9);
  for (const {name, launches, grid, block, share} of live.kernels.rows) {
    const row = made("li"), label = made("span", "name", name), bar = made("span", "share"), fill = made("i");
    if (launches) label.append(made("i", "", ` ×${launches}`));
    row.title = grid ? `${name}: ${`${launches} launch${launches === 1 ? "" : "es"}`}, grid ${grid}, block ${block}` : name;
    fill.style.width = `${(100 * share) / most}%`;
    bar.append(fill);
    row.append(label, bar, made("span", "part", `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`));
    list.append(row);
  }
  $("kernels").replaceChildren(list);
}

// --- Charts ----------------------------------------------------------------------------------------------------------

const LEFT = 44, TOP = 6, BELOW = 17;

// 1, 2 or 5 times a power of ten, the smallest above.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-6)));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((times) => times * power >= value * 0.999) * power;
}

function frame(canvas, top, words, left, right) {
  const [ctx, wide, tall] = fit(canvas);
  ctx.clearRect(0, 0, wide, tall);
  if (!wide) return null;
  const bottom = tall - BELOW, x0 = LEFT, x1 = wide - 4;
  ctx.font = `10.5px ${colours.sans}`;
  ctx.textBaseline = "middle";
  ctx.lineWidth = 1;
  for (const part of [0, 0.5, 1]) {
    const y = Math.round(bottom - part * (bottom - TOP)) + 0.5;
    ctx.strokeStyle = part ? colours.line : colours.edge;
    ctx.beginPath();
    ctx.moveTo(x0, y);
    ctx.lineTo(x1, y);
    ctx.stroke();
    if (part !== 0.5) {
      ctx.fillStyle = colours.soft;
      ctx.textAlign = "right";
      ctx.fillText(part ? words(top) : "0", x0 - 6, y);
    }
  }
  ctx.fillStyle = colours.soft;
  ctx.textBaseline = "alphabetic";
  ctx.textAlign = "left";
  ctx.fillText(left, x0, tall - 3);
  ctx.textAlign = "right";
  ctx.fillText(right, x1, tall - 3);
  return {ctx, x0, x1, bottom, y: (value) => bottom - (Math.min(value, top) / top) * (bottom - TOP)};
}

function paintSteps() {
  const canvas = $("chart-steps"), shown = history.steps.slice(-60);
  const top = roundUp(Math.max(8, ...shown.map(([, prefill, decode]) => prefill + decode)));
  const drawn = frame(canvas, top, (value) => value.toLocaleString("en"), shown.length ? `step ${shown[0][0].toLocaleString("en")}` : "", shown.length ? `step ${shown.at(-1)[0].toLocaleString("en")}` : "");
  if (!drawn) return;
  const {ctx, x0, x1, bottom, y} = drawn, pitch = (x1 - x0) / 60;
  shown.forEach(([, prefill, decode], at) => {
    const x = x1 - (shown.length - at) * pitch;
    ctx.fillStyle = colours.decode;
    ctx.fillRect(x, y(decode), Math.max(1, pitch - 1), bottom - y(decode));
    ctx.fillStyle = colours.prefill;
    ctx.fillRect(x, y(prefill + decode), Math.max(1, pitch - 1), y(decode) - y(prefill + decode));
  });
  canvas.setAttribute("aria-label", shown.length ? `The last ${count(shown.length, "step")}: at most ${Math.max(...shown.map((step) => step[1] + step[2]))} tokens in one` : "No steps yet");
}

const quantile = (values, part) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] : null;
};

// lines: [value of a bin or null, colour, dashes, filled]
function overTime(id, lines, words, least) {
  const now = performance.now() / 1000, bins = history.bins.filter((bin) => bin.second < Math.floor(now));
  const values = bins.map((bin) => lines.map(([value]) => value(bin)));
  const top = roundUp(Math.max(least, ...values.flat().map((value) => value ?? 0)));
  const span = Math.min(SECONDS, Math.max(20, now - history.bins[0]?.second || 0));
  const drawn = frame($(id), top, words, `${span.toFixed(0)} s ago`, "now");
  if (!drawn) return;
  const {ctx, x0, x1, bottom, y} = drawn;
  const xOf = (second) => x1 - ((now - second - 1) / span) * (x1 - x0);
  ctx.save();
  ctx.beginPath();
  ctx.rect(x0, 0, x1 - x0 + 2, bottom + 1);
  ctx.clip();
  lines.forEach(([, colour, dashes, filled], which) => {
    ctx.strokeStyle = ctx.fillStyle = colours[colour];
    ctx.lineWidth = 1.8;
    ctx.setLineDash(dashes);
    let run = [];
    const end = () => {
      if (!run.length) return;
      ctx.beginPath();
      run.forEach(([x, value], at) => (at ? ctx.lineTo(x, y(value)) : ctx.moveTo(x, y(value))));
      ctx.stroke();
      if (!filled && run.length < 30) for (const [x, value] of run) ctx.fillRect(x - 1.5, y(value) - 1.5, 3, 3);
      if (filled) {
        ctx.lineTo(run.at(-1)[0], bottom);
        ctx.lineTo(run[0][0], bottom);
        ctx.globalAlpha = dashes.length ? 0 : 0.16;
        ctx.fill();
        ctx.globalAlpha = 1;
      }
      run = [];
    };
    bins.forEach((bin, at) => {
      const value = values[at][which];
      if (value === null) return;
      if (run.length && bin.second - run.at(-1)[2] > 8) end();
      run.push([xOf(bin.second), value, bin.second]);
    });
    end();
    ctx.setLineDash([]);
  });
  ctx.restore();
  return {drawn, bins, xOf};
}

// The latest values, each with a piece of its line.
function keyed(id, values) {
  const now = values.map(([, , text]) => text).join(" ");
  if ($(id).dataset.shown === now) return;
  $(id).dataset.shown = now;
  $(id).replaceChildren(...values.map(([colour, dashes, text]) => {
    const part = made("span"), line = made("i", dashes);
    line.style.setProperty("--c", `var(--${colour})`);
    part.append(...(colour ? [line] : []), text);
    return part;
  }));
}

function latest(what) {
  const second = performance.now() / 1000;
  return history.bins.filter((bin) => bin.second > second - 10).flatMap((bin) => bin[what]);
}

function latency(id, label, what) {
  overTime(id, [[(bin) => quantile(bin[what], 0.5), "decode", [], false], [(bin) => quantile(bin[what], 0.95), "preempted", [4, 3], false]], ms, 1);
  const values = latest(what);
  const texts = [0.5, 0.95].map((part) => `p${100 * part} ${values.length ? ms(quantile(values, part)) : "–"}`);
  keyed(label, [["decode", "", texts[0]], ["preempted", "dashed", texts[1]]]);
  $(id).setAttribute("aria-label", `Over two minutes; in the last ten seconds ${texts.join(", ")}`);
}

let chartsAt = 0;
painters.push(function paintCharts() {
  if (performance.now() - chartsAt < 400) return;
  chartsAt = performance.now();
  overTime("chart-rate", [[(bin) => bin.prompt, "prefill", [4, 3], true], [(bin) => bin.generated, "decode", [], true]], (value) => value.toLocaleString("en"), 10);
  const rates = [`generated ${rateNow("generated").toFixed(0)}`, `prompts ${rateNow("prompt").toFixed(0)}`];
  keyed("v-rate", [["decode", "", rates[0]], ["prefill", "dashed", rates[1]]]);
  $("chart-rate").setAttribute("aria-label", `Tokens per second, now: ${rates.join(", ")}`);
  latency("chart-first", "v-first", "first");
  latency("chart-gap", "v-gap", "gap");
  const over = overTime("chart-pages", [[(bin) => bin.held ?? null, "held", [], true]], (value) => value.toLocaleString("en"), 8);
  let crosses = 0;
  if (over) {
    const {ctx, x0} = over.drawn;
    ctx.strokeStyle = colours.ink;
    ctx.lineWidth = 1.8;
    for (const bin of history.bins) {
      crosses += bin.preempted;
      const x = over.xOf(bin.second), y = TOP + 6;
      if (!bin.preempted || x < x0) continue;
      ctx.beginPath();
      for (const [a, b] of [[-1, -1], [-1, 1]]) { ctx.moveTo(x + 4 * a, y + 4 * b); ctx.lineTo(x - 4 * a, y - 4 * b); }
      ctx.stroke();
    }
  }
  const words = [`${(live.pages - live.free).toLocaleString("en")} held`, `✕ ${count(crosses, "preemption")}`];
  keyed("v-pages", [["held", "", words[0]], ["", "", words[1]]]);
  $("chart-pages").setAttribute("aria-label", `Over two minutes; now ${words.join(", ")}`);
});
setInterval(() => {  // time goes on, where nothing else does
  if (document.hidden || !live.connected) return;
  binNow();
  changed();
}, 500);
