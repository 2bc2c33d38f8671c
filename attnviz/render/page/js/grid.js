// The grid: every head of every layer as a thumbnail of its weights, computed when there is time.

import { inks, rampTable, weightPlace } from "./colors.js";
import { byId, canvasFont, percent, sizeCanvas, soon } from "./dom.js";
import { attendRow, isVisible, poolByMax } from "./maths.js";
import { choose, headName, page, state } from "./state.js";

const THUMB = 64;
const SLICE_MS = 12;

const thumbs = new Map(); // "layer.head" → pooled weights and the strongest cell
let frame = null;
let job = null; // the head that is being computed, row by row
let isWaiting = false;

/** Set up the canvas: click, hover and arrow keys choose a head. */
export function setUpGrid() {
  const canvas = byId("grid");
  canvas.addEventListener("pointermove", (event) => readOut(headAt(event)));
  canvas.addEventListener("pointerleave", () => readOut(null));
  canvas.addEventListener("click", (event) => {
    const found = headAt(event);
    if (found) {
      choose({ ...found, hover: null });
    }
  });
  canvas.addEventListener("dblclick", (event) => {
    const found = headAt(event);
    if (found) {
      choose({ ...found, view: "heatmap" });
      byId("heatmap").focus();
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter") {
      choose({ view: "heatmap" });
      byId("heatmap").focus();
    } else if (step && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      const { layers, heads } = page.header;
      choose({
        layer: Math.max(0, Math.min(layers.length - 1, state.layer + step[0])),
        head: Math.max(0, Math.min(heads.length - 1, state.head + step[1])),
        hover: null,
      });
      readOut(state);
    }
  });
}

function headAt(event) {
  const bounds = byId("grid").getBoundingClientRect();
  const head = Math.floor((event.clientX - bounds.left - frame.left) / frame.pitch);
  const layer = Math.floor((event.clientY - bounds.top - frame.top) / frame.pitch);
  const { layers, heads } = page.header;
  return head >= 0 && layer >= 0 && head < heads.length && layer < layers.length ? { layer, head } : null;
}

function readOut(place) {
  const note = byId("grid-note");
  const thumb = place && thumbs.get(`${place.layer}.${place.head}`);
  if (!thumb) {
    note.textContent = place ? headName(place.layer, place.head) : progress();
    return;
  }
  const query = page.queries[thumb.query];
  const key = page.keys[thumb.key];
  note.textContent = `${headName(place.layer, place.head)}: strongest link ${percent(thumb.top, 1)}, ` +
    `from ${query.index} to ${key.index}; mean of each query's strongest ${percent(thumb.meanTop, 1)}`;
}

function progress() {
  const { layers, heads } = page.header;
  const all = layers.length * heads.length;
  return thumbs.size < all
    ? `${thumbs.size} of ${all} heads computed`
    : `${all} ${all === 1 ? "head" : "heads"}; click one to choose it, double-click to open it as a heatmap`;
}

/** Draw what is computed, and go on computing while the grid is looked at. */
export function drawGrid() {
  const canvas = byId("grid");
  const room = canvas.parentElement.clientWidth;
  if (state.view !== "grid" || !room) {
    return;
  }
  const { layers, heads } = page.header;
  const left = 34;
  const top = 22;
  const pitch = Math.max(18, Math.min(96, Math.floor((room - left - 2) / heads.length)));
  frame = { left, top, pitch };
  const context = sizeCanvas(canvas, left + pitch * heads.length + 2, top + pitch * layers.length + 2);
  const colors = inks();
  context.font = canvasFont(11);
  context.textBaseline = "middle";
  const nth = Math.max(1, Math.ceil(24 / pitch));
  heads.forEach((number, n) => {
    if (n % nth === 0) {
      context.fillStyle = n === state.head ? colors.ink : colors.muted;
      context.textAlign = "center";
      context.fillText(`H${number}`, left + (n + 0.5) * pitch, top / 2);
    }
  });
  layers.forEach((layer, n) => {
    context.fillStyle = n === state.layer ? colors.ink : colors.muted;
    context.textAlign = "right";
    context.fillText(`L${layer.layer}`, left - 6, top + (n + 0.5) * pitch);
    heads.forEach((_, head) => drawThumb(context, n, head));
  });
  context.strokeStyle = colors.mark;
  context.lineWidth = 2;
  context.strokeRect(left + state.head * pitch + 0.5, top + state.layer * pitch + 0.5, pitch - 1, pitch - 1);
  canvas.dataset.pitch = pitch;
  canvas.dataset.done = thumbs.size;
  readOut(null);
  goOn();
}

function drawThumb(context, layer, head) {
  const { left, top, pitch } = frame;
  const gap = pitch > 30 ? 3 : 1;
  const x = left + head * pitch + gap;
  const y = top + layer * pitch + gap;
  const size = pitch - 2 * gap;
  const thumb = thumbs.get(`${layer}.${head}`);
  if (!thumb) {
    context.strokeStyle = inks().line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    return;
  }
  const look = `${state.theme}.${state.scaling}`;
  if (thumb.look !== look) {
    thumb.look = look;
    thumb.canvas = paint(thumb);
  }
  context.imageSmoothingEnabled = thumb.wide > size;
  context.drawImage(thumb.canvas, x, y, size, size);
}

function paint(thumb) {
  const table = rampTable("weights");
  const { hidden } = inks();
  const top = state.scaling === "largest" ? thumb.top || 1 : 1;
  const image = new ImageData(thumb.wide, thumb.high);
  thumb.pooled.forEach((value, at) => {
    const shade = Number.isNaN(value) ? -1 : Math.round(255 * Math.min(1, weightPlace(value, top)));
    for (let c = 0; c < 3; c++) {
      image.data[at * 4 + c] = shade < 0 ? hidden[c] : table[shade * 3 + c];
    }
    image.data[at * 4 + 3] = 255;
  });
  const canvas = document.createElement("canvas");
  canvas.width = thumb.wide;
  canvas.height = thumb.high;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function goOn() {
  const { layers, heads } = page.header;
  if (!isWaiting && thumbs.size < layers.length * heads.length) {
    isWaiting = true;
    setTimeout(work, 0);
  }
}

function work() {
  isWaiting = false;
  if (state.view !== "grid") {
    return;
  }
  const until = performance.now() + SLICE_MS;
  let isNew = false;
  while (performance.now() < until) {
    job ??= nextJob();
    if (!job) {
      break;
    }
    isNew = computeRow(job) || isNew;
  }
  if (isNew) {
    soon("grid", drawGrid);
  }
  goOn();
}

function nextJob() {
  const { layers, heads } = page.header;
  for (let layer = 0; layer < layers.length; layer++) {
    for (let head = 0; head < heads.length; head++) {
      if (!thumbs.has(`${layer}.${head}`)) {
        const numbers = page.numbers.head(layer, head);
        const cells = numbers.nQueries * numbers.nKeys;
        return {
          layer, head, numbers, row: 0, sumOfTops: 0, top: 0, query: 0, key: 0,
          scores: new Float64Array(numbers.nKeys), weights: new Float64Array(numbers.nKeys),
          kept: new Float32Array(cells),
        };
      }
    }
  }
  return null;
}

/** Compute one row; when it was the last, keep the thumbnail. Returns true then. */
function computeRow(task) {
  const { numbers, row } = task;
  attendRow(numbers, row, task.scores, task.weights, 0);
  let best = 0;
  for (let j = 0; j < numbers.nKeys; j++) {
    best = task.weights[j] > task.weights[best] ? j : best;
    task.kept[row * numbers.nKeys + j] = isVisible(numbers, row, j) ? task.weights[j] : NaN;
  }
  task.sumOfTops += task.weights[best];
  if (task.weights[best] > task.top) {
    Object.assign(task, { top: task.weights[best], query: row, key: best });
  }
  task.row += 1;
  if (task.row < numbers.nQueries) {
    return false;
  }
  const high = Math.min(THUMB, numbers.nQueries);
  const wide = Math.min(THUMB, numbers.nKeys);
  const box = { row: 0, column: 0, rows: numbers.nQueries, columns: numbers.nKeys };
  thumbs.set(`${task.layer}.${task.head}`, {
    high, wide, top: task.top, query: task.query, key: task.key,
    meanTop: task.sumOfTops / numbers.nQueries,
    pooled: poolByMax(task.kept, numbers.nQueries, numbers.nKeys, box, high, wide),
  });
  job = null;
  return true;
}
