// The trace of trace.py as steps, and what a block looks like after any of them.

const [STATEMENT, BARRIER, COLLECTIVE, MEMORY] = [0, 1, 2, 3];
const READ = 1, WRITE = 2, UPDATE = 4;
const OUTSIDE = 3; // the kind of a request that was outside its array: load, store and atomic are 0 to 2
const TYPES = {f4: Float32Array, f8: Float64Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array};

function bytesOf(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

function column(text, type) {
  return new TYPES[type](bytesOf(text).buffer);
}

function product(numbers) {
  return numbers.reduce((a, b) => a * b, 1);
}

function lanesOf(mask) {
  const lanes = [];
  for (let lane = 0; lane < 32; lane++) if (mask >>> lane & 1) lanes.push(lane);
  return lanes;
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  unsigned() {
    for (let value = 0, scale = 1; ; scale *= 128) {
      const byte = this.bytes[this.at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  }

  signed() {
    const n = this.unsigned();
    return n % 2 ? -(n + 1) / 2 : n / 2;
  }

  runs(count, last) {
    const numbers = [];
    let value = last + (count ? this.signed() : 0);
    if (count) numbers.push(value);
    while (numbers.length < count) {
      const by = this.signed();
      for (let times = this.unsigned(); times > 0; times--) numbers.push(value += by);
    }
    return numbers;
  }
}

// An array of the launch: where its cells lie, in memory and on the page.
class ArrayView {
  constructor(number, about) {
    Object.assign(this, about, {number});
    this.cols = this.shape.length ? this.shape[this.shape.length - 1] : 1;
    const [r0, r1, c0, c1] = this.window;
    [this.r0, this.c0, this.height, this.width] = [r0, c0, r1 - r0, c1 - c0];
    this.cells = this.height * this.width;
    this.flat = this.shape.length < 2;
    this.sectors = Int32Array.from({length: this.cells}, (_, cell) => this.address(this.elementOf(cell)) >> 5);
  }

  elementOf(cell) {
    return (this.r0 + Math.floor(cell / this.width)) * this.cols + this.c0 + cell % this.width;
  }

  cellOf(element) {
    const row = Math.floor(element / this.cols) - this.r0, col = element % this.cols - this.c0;
    return row >= 0 && row < this.height && col >= 0 && col < this.width ? row * this.width + col : -1;
  }

  indexOf(element) {
    const index = [];
    for (const length of [...this.shape].reverse()) {
      index.unshift(element % length);
      element = Math.floor(element / length);
    }
    return index;
  }

  address(element) {
    if (!this.strides) return this.origin + element * this.itemsize;
    return this.indexOf(element).reduce((sum, i, axis) => sum + i * this.strides[axis], this.origin);
  }

  bank(element) {
    return Math.floor(this.address(element) / 4) % 32;
  }

  called(element) {
    return `${this.name}[${this.indexOf(element).join(", ")}]`;
  }
}

// All steps of a block. `rounds` has the numbers of the steps that begin a round of all warps.
function stepsOf(block, arrays, names) {
  const reader = new Reader(bytesOf(block.stream)), steps = [], last = {}, rows = {}, masks = {};
  const values = {}, used = {};
  for (const [k, text] of Object.entries(block.values)) values[k] = arrays[k].type ? column(text, arrays[k].type) : null;
  let warp = 0;
  const elements = (array, count) => {
    const found = reader.runs(count, last[array] || 0);
    if (count) last[array] = found[count - 1];
    return found;
  };
  for (let k = 0; k < block.steps; k++) {
    const head = reader.unsigned(), has = (bit) => Math.floor(head / 4) >> bit & 1;
    warp += reader.signed();
    const row = rows[warp] = (rows[warp] || 0) + reader.signed();
    if (has(1)) masks[warp] = reader.unsigned();
    const step = {number: k, kind: head & 3, begins: has(0), warp, row, mask: masks[warp] || 0, waits: has(2) ? reader.unsigned() : 0,
                  ended: has(3) ? reader.unsigned() : 0, name: has(4) ? names[reader.unsigned()] : "", requests: [], writes: []};
    for (let left = has(5) ? reader.unsigned() : 0; left > 0; left--) {
      const what = reader.unsigned(), how = reader.unsigned();
      const lanes = lanesOf(how & 1 ? reader.unsigned() : step.mask), width = how & 2 ? reader.unsigned() : 1;
      const array = Math.floor(what / 4);
      step.requests.push({kind: what & 3, array: arrays[array], cost: Math.floor(how / 4), lanes, width, elements: elements(array, lanes.length)});
    }
    for (let left = has(6) ? reader.unsigned() : 0; left > 0; left--) {
      const array = reader.unsigned(), count = reader.unsigned(), from = used[array] || 0;
      used[array] = from + count;
      step.writes.push({array: arrays[array], elements: elements(array, count), values: values[array]?.subarray(from, from + count)});
    }
    steps.push(step);
  }
  return steps;
}

// What a block looks like after a number of steps: 0 is before the first.
class BlockState {
  constructor(data, block, arrays) {
    [this.data, this.block, this.arrays] = [data, block, arrays];
    this.threads = product(data.block);
    this.warps = Math.ceil(this.threads / 32);
    this.steps = stepsOf(block, arrays, data.names);
    this.reset();
  }

  reset() {
    this.at = 0;
    this.row = new Int32Array(this.threads).fill(-1);
    this.waiting = new Uint8Array(this.threads);
    this.done = new Uint8Array(this.threads);
    this.masks = new Array(this.warps).fill(-1);
    this.values = this.arrays.map((array) => new Float64Array(array.cells));
    this.known = this.arrays.map((array) => new Uint8Array(array.cells));
    this.writer = this.arrays.map((array) => new Int32Array(array.cells).fill(-1));
    this.wrong = this.arrays.map((array) => new Uint8Array(array.cells)); // values that the good order never has there
    for (const array of this.arrays) {
      if (array.initial === undefined) continue;
      if (array.type) this.values[array.number].set(column(array.initial, array.type));
      this.known[array.number].fill(1);
    }
    for (const [k, [places, texts]] of Object.entries(this.block.changed)) {
      const reader = new Reader(bytesOf(places)), array = this.arrays[k];
      const elements = reader.runs(reader.unsigned(), 0);
      this.write(array, elements, array.type ? column(texts, array.type) : null, -1);
    }
  }

  write(array, elements, values, step) {
    elements.forEach((element, k) => {
      const cell = array.cellOf(element);
      if (cell < 0) return;
      this.known[array.number][cell] = 1;
      this.writer[array.number][cell] = step;
      this.wrong[array.number][cell] = (this.data.wrong?.[step]?.[array.number] || []).includes(element) ? 1 : 0;
      this.values[array.number][cell] = values ? values[k] : NaN;
    });
  }

  seek(number) {
    if (number < this.at) this.reset();
    while (this.at < number) this.apply(this.steps[this.at++]);
  }

  apply(step) {
    if (step.kind === BARRIER) this.waiting.fill(0);
    if (step.kind === STATEMENT || step.kind === COLLECTIVE) {
      this.masks[step.warp] = step.mask;
      for (const lane of lanesOf(step.mask)) {
        const t = 32 * step.warp + lane;
        this.row[t] = step.row;
        this.waiting[t] = step.waits >>> lane & 1;
        this.done[t] = step.ended >>> lane & 1;
      }
    }
    for (const {array, elements, values} of step.writes) this.write(array, elements, values, step.number);
  }

  // "running", "ready", "waiting", "masked" or "done" for each thread; shown: the steps that are looked at.
  states(shown) {
    const states = new Array(this.threads);
    const active = new Array(this.warps).fill(0);
    for (const step of shown) if (step.kind === STATEMENT || step.kind === COLLECTIVE) active[step.warp] |= step.mask;
    for (let t = 0; t < this.threads; t++) {
      const warp = t >> 5, bit = t & 31;
      if (this.waiting[t]) states[t] = "waiting";
      else if (active[warp] >>> bit & 1) states[t] = "running";
      else if (this.done[t]) states[t] = "done";
      else states[t] = this.masks[warp] === -1 || this.masks[warp] >>> bit & 1 ? "ready" : "masked";
    }
    return states;
  }
}
