// The grid: every head of every layer as a thumbnail of its weights, computed when there is time.

import { inks, rampTable, weightPlace } from "./colors.js";
import { byId, canvasFont, percent, sizeCanvas, soon } from "./dom.js";
import { allHeads, drawChosen, drawEdges, setUpHeadMap } from "./headmap.js";
import { attendRow, isVisible, patternShares, poolByMax } from "./maths.js";
import { headName, numbersFor, page, sinkKeys, state, whatIf } from "./state.js";

const THUMB = 64;
const SLICE_MS = 24; // a frame and a half: the page answers between two slices
const PATTERNS = ["previous", "first", "self", "induction", "special"];

const thumbs = new Map(); // "layer.head" → pooled weights and the strongest cell
let frame = null;
let job = null; // the head that is being computed, row by row
let isWaiting = false;
let thumbsRule = "";
let sortedBy = "";
let pointed = null; // the head that is described

/** Set up the canvas and the choice of its order. */
export function setUpGrid() {
  setUpHeadMap(byId("grid"), () => frame, (place) => {
    pointed = place;
    readOut();
  });
  byId("grid-sort").addEventListener("change", (event) => {
    sortedBy = event.target.value;
    soon("grid", drawGrid);
  });
}

/** Describe the head under the pointer, or that the keys chose, until another is looked at. */
function readOut() {
  const note = byId("grid-note");
  const thumb = pointed && thumbs.get(`${pointed.layer}.${pointed.head}`);
  if (!thumb) {
    note.textContent = pointed ? headName(pointed.layer, pointed.head) : progress();
    return;
  }
  const query = page.queries[thumb.query];
  const key = page.keys[thumb.key];
  const habits = PATTERNS.filter((name) => thumb.shares[name] >= 0.2).map((name) => `${name} ${percent(thumb.shares[name], 0)}`);
  note.textContent = `${headName(pointed.layer, pointed.head)}: strongest link ${percent(thumb.top, 1)}, ` +
    `from ${query.index} to ${key.index}${habits.length ? `; on average ${habits.join(", ")}` : ""}`;
}

function progress() {
  const all = allHeads().length;
  return thumbs.size < all
    ? `${thumbs.size} of ${all} heads computed`
    : `${all} ${all === 1 ? "head" : "heads"}; click one to choose it, double-click to open it as a heatmap`;
}

/** The heads in the order that is asked for; those not computed yet come last. */
function ordered() {
  const places = allHeads();
  if (!sortedBy) {
    return places;
  }
  const sizeOf = ({ layer, head }) => {
    const thumb = thumbs.get(`${layer}.${head}`);
    return thumb ? (sortedBy === "top" ? thumb.top : thumb.shares[sortedBy]) : -1;
  };
  return places.map((place, n) => ({ ...place, n, size: sizeOf(place) })).sort((a, b) => b.size - a.size || a.n - b.n);
}

/** Draw what is computed, and go on computing while the grid is looked at. */
export function drawGrid() {
  const canvas = byId("grid");
  const room = canvas.parentElement.clientWidth;
  if (state.view !== "grid" || !room) {
    return;
  }
  forgetOthers();
  const { layers, heads } = page.header;
  const left = sortedBy ? 2 : 34;
  const top = sortedBy ? 2 : 22;
  const pitch = sortedBy ? 96 : Math.max(18, Math.min(96, Math.floor((room - left - 2) / heads.length)));
  const columns = sortedBy ? Math.max(1, Math.floor((room - 4) / pitch)) : heads.length;
  const places = ordered();
  frame = { left, top, pitch, columns, places };
  const rows = sortedBy ? Math.ceil(places.length / columns) : layers.length;
  const context = sizeCanvas(canvas, left + pitch * columns + 2, top + pitch * rows + 2);
  if (!sortedBy) {
    drawEdges(context, frame);
  }
  places.forEach((place, n) => drawThumb(context, place, n));
  drawChosen(context, frame);
  canvas.dataset.pitch = pitch;
  canvas.dataset.done = thumbs.size;
  readOut();
  goOn();
}

/** Thumbnails are of one rule: a what-if makes them anew. */
function forgetOthers() {
  const rule = `${JSON.stringify(whatIf())} ${state.sinks}`;
  if (rule !== thumbsRule) {
    thumbsRule = rule;
    thumbs.clear();
    job = null;
  }
}

function drawThumb(context, { layer, head }, n) {
  const { left, top, pitch, columns } = frame;
  const gap = pitch > 30 ? 3 : 1;
  const x = left + (n % columns) * pitch + gap;
  const y = top + Math.floor(n / columns) * pitch + gap;
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
  const badge = badgeOf(thumb);
  if (sortedBy || (badge && pitch >= 40)) {
    const words = sortedBy ? headName(layer, head) : badge;
    const color = inks();
    context.font = canvasFont(10, 600);
    context.textAlign = "left";
    context.textBaseline = "bottom";
    const wide = context.measureText(words).width + 6;
    context.fillStyle = color.surface;
    context.fillRect(x, y + size - 13, wide, 13);
    context.fillStyle = color.ink;
    context.fillText(words, x + 3, y + size - 1);
  }
}

/** What a head mostly does, in a word, where it does it with more than two fifths of its weight. */
function badgeOf({ shares }) {
  const name = PATTERNS.reduce((best, each) => (shares[each] > shares[best] ? each : best));
  return shares[name] >= 0.4 ? { previous: "prev", induction: "ind", special: "sink" }[name] ?? name : "";
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
  if (!isWaiting && thumbs.size < allHeads().length) {
    isWaiting = true;
    const channel = new MessageChannel(); // unlike a timer, it does not wait 4 ms between two slices
    channel.port1.onmessage = work;
    channel.port2.postMessage(null);
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

/** The next head to compute: those in sight first, in the order they stand. */
function nextJob() {
  const bounds = byId("grid").getBoundingClientRect();
  const inSight = Math.max(0, Math.floor((-bounds.top - frame.top) / frame.pitch)) * frame.columns;
  const open = ({ layer, head }) => !thumbs.has(`${layer}.${head}`);
  const place = frame.places.slice(inSight).find(open) ?? frame.places.find(open);
  if (!place) {
    return null;
  }
  const numbers = numbersFor(place.layer, place.head);
  return {
    ...place, numbers, row: 0, top: 0, query: 0, key: 0,
    scores: new Float64Array(numbers.nKeys), weights: new Float64Array(numbers.nKeys),
    kept: new Float32Array(numbers.nQueries * numbers.nKeys), left: state.sinks ? [] : sinkKeys(),
  };
}

/** Compute one row; when it was the last, keep the thumbnail. Returns true then. */
function computeRow(task) {
  const { numbers, row, weights } = task;
  const { nKeys } = numbers;
  attendRow(numbers, row, task.scores, weights, 0);
  rescale(weights, task.left);
  let best = 0;
  for (let j = 0; j < nKeys; j++) {
    best = weights[j] > weights[best] ? j : best;
    task.kept[row * nKeys + j] = weights[j] > 0 || isVisible(numbers, row, j) ? weights[j] : NaN;
  }
  if (weights[best] > task.top) {
    Object.assign(task, { top: weights[best], query: row, key: best });
  }
  task.row += 1;
  if (task.row < numbers.nQueries) {
    return false;
  }
  const high = Math.min(THUMB, numbers.nQueries);
  const wide = Math.min(THUMB, nKeys);
  const box = { row: 0, column: 0, rows: numbers.nQueries, columns: nKeys };
  thumbs.set(`${task.layer}.${task.head}`, {
    high, wide, top: task.top, query: task.query, key: task.key,
    shares: patternShares(task.kept, page.queries, page.keys, page.sameTokens),
    pooled: poolByMax(task.kept, numbers.nQueries, nKeys, box, high, wide),
  });
  job = null;
  return true;
}

function rescale(weights, left) {
  if (!left.length) {
    return;
  }
  for (const key of left) {
    weights[key] = 0;
  }
  const sum = weights.reduce((a, b) => a + b, 0) || 1;
  weights.forEach((weight, j) => {
    weights[j] = weight / sum;
  });
}
