// Grids of cells on canvases: the threads of a block, the arrays, and the map of all steps.

let colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = new Proxy({}, {get: (known, name) => known[name] ||= style.getPropertyValue(`--${name}`).trim()});
}

// A canvas of this size in CSS pixels, cleared, and sharp on every screen.
function prepared(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function sized(canvas, width, height) {
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return prepared(canvas, width, height);
}

function hatched(context, x, y, w, h, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, w, h);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1, w / 9);
  context.beginPath();
  const gap = Math.max(3, w / 3.2);
  for (let d = -h; d < w; d += gap) {
    context.moveTo(x + d, y + h);
    context.lineTo(x + d + h, y);
  }
  context.stroke();
  context.restore();
}

// Where each thread of a block stands: rows of its x where these make whole warps, else rows of 32.
class ThreadGrid {
  constructor(canvas, shape) {
    const [x, y, z] = shape;
    this.canvas = canvas;
    this.shape = shape;
    this.threads = x * y * z;
    this.cols = x <= 32 && 32 % x === 0 && y * z > 1 ? x : Math.min(32, this.threads);
    this.rows = Math.ceil(this.threads / this.cols);
    this.perWarp = 32 / this.cols;
  }

  layout(width) {
    this.label = this.threads > 32 ? 46 : 0;
    this.cell = Math.max(7, Math.min(30, Math.floor((width - this.label - 2) / this.cols)));
    if (this.rows > 8) this.cell = Math.max(9, Math.min(this.cell, Math.floor(330 / this.rows)));
    this.gap = this.threads > 32 ? 4 : 0;
  }

  place(t) {
    const row = Math.floor(t / this.cols);
    return [this.label + t % this.cols * this.cell + 1, row * this.cell + Math.floor(t / 32) * this.gap + 1];
  }

  at(x, y) {
    for (let row = 0; row < this.rows; row++) {
      const [left, top] = this.place(row * this.cols), col = Math.floor((x - left) / this.cell);
      if (y >= top && y < top + this.cell && col >= 0 && col < this.cols && row * this.cols + col < this.threads) return row * this.cols + col;
    }
    return -1;
  }

  draw(states, marks, picked) {
    const warps = Math.ceil(this.threads / 32);
    const height = this.rows * this.cell + (warps - 1) * this.gap + 2;
    const context = sized(this.canvas, this.label + this.cols * this.cell + 2, height);
    const size = this.cell - (this.cell > 9 ? 2 : 1);
    context.textBaseline = "middle";
    if (this.label) {
      context.font = "11px ui-sans-serif, system-ui, sans-serif";
      context.fillStyle = colours.soft;
      const each = this.perWarp * this.cell + this.gap < 12 ? 2 : 1;
      for (let w = 0; w < warps; w += each) {
        const rows = Math.min(Math.max(1, this.perWarp), this.rows - w * this.perWarp);
        context.fillText(`warp ${w}`, 0, this.place(32 * w)[1] + rows * this.cell / 2);
      }
    }
    const radius = Math.min(4, size / 4);
    for (let t = 0; t < this.threads; t++) {
      const [x, y] = this.place(t), state = states[t];
      context.beginPath();
      context.roundRect(x, y, size, size, radius);
      if (state === "running") {
        context.fillStyle = colours.accent;
        context.fill();
      } else if (state === "waiting") {
        context.fillStyle = colours.wait;
        context.fill();
        context.fillStyle = colours["on-wait"];
        context.fillRect(x + size * .3, y + size * .25, size * .13, size * .5);
        context.fillRect(x + size * .57, y + size * .25, size * .13, size * .5);
      } else if (state === "ready") {
        context.fillStyle = colours["accent-pale"];
        context.fill();
        context.strokeStyle = colours.accent;
        context.lineWidth = 1;
        context.stroke();
      } else if (state === "masked") {
        hatched(context, x, y, size, size, colours.mask);
        context.beginPath();
        context.roundRect(x, y, size, size, radius);
        context.strokeStyle = colours.edge;
        context.lineWidth = 1;
        context.stroke();
      } else {
        context.strokeStyle = colours.line;
        context.lineWidth = 1;
        context.stroke();
        context.fillStyle = colours.edge;
        context.beginPath();
        context.arc(x + size / 2, y + size / 2, Math.max(1, size * .11), 0, 7);
        context.fill();
      }
      if (size >= 16 && (state === "running" || state === "ready" || state === "masked")) {
        context.fillStyle = state === "running" ? colours["on-accent"] : state === "ready" ? colours.accent : colours.ink;
        context.font = `${state === "masked" ? 600 : 400} ${Math.min(11, size * .5)}px ui-sans-serif, system-ui, sans-serif`;
        context.textAlign = "center";
        if (state === "masked") {
          context.fillStyle = colours.paper;
          context.fillRect(x + size * .22, y + size * .24, size * .56, size * .52);
          context.fillStyle = colours.soft;
        }
        context.fillText(this.perWarp > 1 ? t % this.cols : t, x + size / 2, y + size / 2 + .5);
        context.textAlign = "left";
      }
    }
    for (const t of picked) ring(context, ...this.place(t), size, colours.ink);
    for (const [t, letter] of marks) {
      const [x, y] = this.place(t);
      ring(context, x, y, size, colours.bad, letter);
    }
  }
}

function ring(context, x, y, size, colour, letter = "", height = size) {
  context.strokeStyle = colour;
  context.lineWidth = 2.5;
  context.strokeRect(x - 1, y - 1, size + 2, height + 2);
  if (!letter) return;
  const width = 5 + 6 * letter.length;
  const left = Math.max(0, x - 4), top = Math.max(0, y - 6);
  context.fillStyle = colour;
  context.beginPath();
  context.roundRect(left, top, width, 12, 3);
  context.fill();
  context.fillStyle = colours["on-bad"];
  context.font = "700 9px ui-monospace, monospace";
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(letter, left + width / 2, top + 6.5);
  context.textAlign = "left";
}

// A number in so little space that it fits into a cell.
function short(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size >= 9999.5) return value.toExponential(0).replace("e+", "e");
  if (Number.isInteger(value)) return String(value);
  if (size < .0095) return value.toExponential(0);
  const text = size >= 99.5 ? value.toFixed(0) : size >= 9.95 ? value.toFixed(1) : value.toFixed(2);
  return text.replace(/^(-?)0\./, "$1.");
}

// An array's cells. One of a single row goes on in the next after 128 bytes: four sectors, or all 32 banks of 4 bytes.
class ArrayGrid {
  constructor(canvas, array, outside) {
    [this.canvas, this.array, this.outside] = [canvas, array, outside];
    const line = Math.max(16, Math.min(64, 128 / array.itemsize));
    this.flat = array.flat || array.height === 1;
    this.cols = this.flat ? Math.min(line, array.cells) : array.width;
    this.rows = Math.ceil(array.cells / Math.max(1, this.cols));
    this.strip = array.space === "shared" ? 30 : 0;
  }

  // tallest: in pixels, of an array of more than a few rows
  layout(width, tallest) {
    const cols = this.cols + (this.outside ? 1 : 0);
    const wanted = Math.min(36, Math.floor((width - 2) / cols), this.rows > 4 ? Math.floor(tallest / this.rows) : 36);
    this.cell = Math.max(width < 500 ? 4 : 5, wanted);
    this.tall = Math.min(24, this.cell);
    const each = Math.max(4, Math.min(12, Math.floor((cols * this.cell) / 32)));
    this.bar = this.cols === 32 && this.array.itemsize === 4 ? this.cell : each; // a bank below its column
  }

  get width() {
    return Math.max((this.cols + (this.outside ? 1 : 0)) * this.cell + 2, this.strip ? 32 * this.bar + 2 : 0);
  }

  get height() {
    return (this.rows + (this.outside && !this.flat ? 1 : 0)) * this.tall + 2;
  }

  place(cell) {
    return [cell % this.cols * this.cell + 1, Math.floor(cell / this.cols) * this.tall + 1];
  }

  at(x, y) {
    const col = Math.floor((x - 1) / this.cell), row = Math.floor((y - 1) / this.tall), cell = row * this.cols + col;
    return col >= 0 && col < this.cols && row >= 0 && cell < this.array.cells ? cell : -1;
  }

  // lit: {cells: Map of cell -> READ | WRITE | UPDATE, sectors: Map of sector -> the same, trail: Set, banks: [...] or null}
  // wrong: for each cell, whether its value is one that a race has spoiled
  draw(state, lit, marks, picked, wrong) {
    const {array} = this, known = state.known[array.number], values = state.values[array.number];
    const context = sized(this.canvas, this.width, this.height + this.strip);
    const gap = this.cell > 8 ? 1.5 : 1, wide = this.cell - gap, tall = this.tall - gap;
    const kind = (what) => what & WRITE ? "write" : what & UPDATE ? "update" : "read";
    context.textBaseline = "middle";
    context.textAlign = "center";
    const font = Math.min(11, Math.max(8, Math.floor(this.cell / 2.6)));
    for (let cell = 0; cell < array.cells; cell++) {
      const [x, y] = this.place(cell), what = lit.cells.get(cell) || 0;
      const sector = array.space === "global" ? lit.sectors.get(array.sectors[cell]) : 0;
      if (sector) {
        context.fillStyle = colours[`${kind(sector)}-pale`];
        context.fillRect(x - gap, y - gap / 2, this.cell + gap / 2, this.tall);
      }
      if (what) {
        context.fillStyle = colours[kind(what)];
        context.fillRect(x, y, wide, tall);
        if (what & READ && what & (WRITE | UPDATE)) {
          context.fillStyle = colours.read;
          context.beginPath();
          context.moveTo(x, y);
          context.lineTo(x + wide, y);
          context.lineTo(x, y + tall);
          context.fill();
        }
      } else {
        if (sector || known[cell]) {
          context.fillStyle = sector ? colours[`${kind(sector)}-pale`] : colours.cell;
          context.fillRect(x, y, wide, tall);
        }
        if (lit.trail.has(cell)) {
          context.strokeStyle = colours[kind(lit.trail.get(cell))];
          context.lineWidth = 1;
          context.globalAlpha = .55;
          context.strokeRect(x + .5, y + .5, wide - 1, tall - 1);
          context.globalAlpha = 1;
        } else if (this.cell > 8 || !known[cell]) {
          context.strokeStyle = colours.line;
          context.lineWidth = .75;
          context.strokeRect(x + .4, y + .4, wide - .8, tall - .8);
        }
      }
      if (wrong[cell]) {
        context.fillStyle = colours.bad;
        context.fillRect(x, y, wide, tall);
      }
      if (known[cell] && this.cell >= 21 && array.type) {
        context.fillStyle = wrong[cell] ? colours["on-bad"] : what ? colours["on-lit"] : colours.ink;
        const text = short(values[cell]);
        context.font = `${Math.min(font, Math.floor(1.75 * wide / text.length))}px ui-sans-serif, system-ui, sans-serif`;
        context.fillText(text, x + wide / 2, y + tall / 2 + .5);
      }
    }
    if (array.space === "global" && this.cell > 5) this.drawSectors(context);
    context.textAlign = "left";
    if (this.strip) this.drawBanks(context, lit.banks);
    for (const cell of picked) ring(context, ...this.place(cell), wide, colours.ink, "", tall);
    for (const [place, letter] of marks) {
      const [x, y] = typeof place === "number" ? this.place(place) : [place[0] * this.cell + 1, place[1] * this.tall + 1];
      if (typeof place !== "number") {
        context.fillStyle = colours["bad-pale"];
        context.fillRect(x, y, wide, tall);
      }
      ring(context, x, y, wide, colours.bad, letter, tall);
    }
  }

  drawSectors(context) {
    const {array} = this;
    context.fillStyle = colours.edge;
    for (let cell = 1; cell < array.cells; cell++) {
      if (cell % this.cols && array.sectors[cell] !== array.sectors[cell - 1]) {
        const [x, y] = this.place(cell);
        context.fillRect(x - 1.4, y, 1, this.tall - 1);
      }
    }
  }

  // How many words of each bank the worst request of this step asks for: as many passes as the highest.
  drawBanks(context, banks) {
    const top = this.height + 6, most = banks ? Math.max(...banks.counts) : 0;
    for (let bank = 0; bank < 32; bank++) {
      const x = bank * this.bar + 1, count = banks ? banks.counts[bank] : 0;
      context.fillStyle = colours.cell;
      context.fillRect(x, top, this.bar - 1, 12);
      if (!count) continue;
      const full = Math.max(3, 12 * count / most);
      context.fillStyle = count > 1 ? colours.bad : colours[banks.kind];
      context.fillRect(x, top + 12 - full, this.bar - 1, full);
    }
    context.fillStyle = colours.soft;
    context.font = "9.5px ui-sans-serif, system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    context.fillText("bank 0", 1, top + 22);
    context.textAlign = "right";
    context.fillText("31", 32 * this.bar, top + 22);
    context.textAlign = "left";
  }

  // Where a place outside the array is drawn: beside its last cell, below or behind its rows.
  beyond(index) {
    if (this.flat) return [this.array.cells % this.cols || this.cols, Math.floor(this.array.cells / this.cols) - (this.array.cells % this.cols ? 0 : 1)];
    const [row, col] = [index[index.length - 2] - this.array.r0, index[index.length - 1] - this.array.c0];
    return [Math.max(0, Math.min(col, this.cols)), Math.max(0, Math.min(row, this.rows))];
  }
}

// What each warp does over all frames: one row a warp, and where the barriers and the faults are.
function drawMap(canvas, frames, warps, at, faults) {
  const width = canvas.clientWidth, height = 26;
  if (!width) return;
  const context = prepared(canvas, width, height);
  const each = width / Math.max(1, frames.length), tall = height / warps;
  frames.forEach((frame, k) => {
    const x = k * each, wide = Math.max(each - (each > 5 ? 1 : 0), .8);
    for (const step of frame.steps) {
      if (step.kind === BARRIER) {
        context.fillStyle = colours.wait;
        context.fillRect(x, 0, Math.max(1.5, Math.min(wide, 4)), height);
      } else if (step.kind !== MEMORY) {
        const lanes = lanesOf(step.mask).length;
        context.fillStyle = step.waits ? colours.wait : step.writes.length ? colours.write : step.requests.length ? colours.read : colours.accent;
        context.globalAlpha = step.waits ? .5 : .25 + .6 * lanes / 32;
        context.fillRect(x, step.warp * tall, wide, tall > 2 ? tall - 1 : tall);
        context.globalAlpha = 1;
      }
    }
  });
  context.fillStyle = colours.bad;
  for (const k of faults) {
    context.beginPath();
    context.moveTo((k + .5) * each - 5, 0);
    context.lineTo((k + .5) * each + 5, 0);
    context.lineTo((k + .5) * each, 8);
    context.fill();
    context.fillRect((k + .5) * each - .75, 0, 1.5, height);
  }
  context.fillStyle = colours.ink;
  if (at >= 0) context.fillRect(Math.min(width - 2, (at + .5) * each - 1), 0, 2, height);
}
