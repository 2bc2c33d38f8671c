// The neuron view: which dimensions of q and k made the score. q∘k by dimension; its sum is q·k.

import { css, inks, rampColor } from "./colors.js";
import { byId, canvasFont, exact, fitLabel, percent, sizeCanvas, soon } from "./dom.js";
import { terms } from "./maths.js";
import { attended, page, shownCell, state } from "./state.js";

const MOST_KEYS = 24;
const ROW_HIGH = 15;

let isSorted = false;
let showsAll = false; // q∘k with the strongest keys, a row each
let chosen = null; // the dimension that is read out
let frame = null;

/** Set up the canvas: hover and left/right read a dimension out, a box sorts by size. */
export function setUpNeuron() {
  const canvas = byId("neuron");
  byId("neuron-sort").addEventListener("change", (event) => {
    isSorted = event.target.checked;
    soon("neuron", drawNeuron);
  });
  byId("neuron-all").addEventListener("change", (event) => {
    showsAll = event.target.checked;
    soon("neuron", drawNeuron);
  });
  canvas.addEventListener("pointermove", (event) => {
    const bounds = canvas.getBoundingClientRect();
    const place = Math.floor((event.clientX - bounds.left - frame.left) / frame.pitch);
    chosen = place >= 0 && place < frame.order.length ? place : null;
    soon("neuron", drawNeuron);
  });
  canvas.addEventListener("pointerleave", () => {
    chosen = null;
    soon("neuron", drawNeuron);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && frame) {
      event.preventDefault();
      chosen = Math.max(0, Math.min(frame.order.length - 1, (chosen ?? -step) + step));
      drawNeuron();
      byId("live").textContent = byId("neuron-note").textContent;
    }
  });
}

/** Draw q, k and q∘k of the shown cell as three rows of bars. */
export function drawNeuron() {
  const canvas = byId("neuron");
  const room = canvas.parentElement.clientWidth;
  if (!room || !page.hasScores) {
    return;
  }
  const { query, key } = shownCell();
  const { head } = attended();
  const products = terms(head, query, key);
  const order = [...products.keys()];
  if (isSorted) {
    order.sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]));
  }
  const left = 30;
  const pitch = (room - left - 2) / order.length;
  frame = { left, pitch, order };
  const colors = inks();
  const bandHigh = [44, 44, 84];
  const keys = showsAll ? strongestKeys(query) : [];
  const context = sizeCanvas(canvas, room, 196 + (keys.length ? keys.length * ROW_HIGH + 8 : 0));
  const q = (e) => head.q[query * head.width + e];
  const k = (e) => head.k[key * head.width + e];
  const product = (e) => products[e];
  let top = 4;
  const bands = [["q", q, colors.query], ["k", k, colors.key], ["q∘k", product, colors.ink]];
  bands.forEach(([name, value, color], n) => {
    drawBand(context, { name, value, color, top, high: bandHigh[n], isProduct: n === 2 });
    top += bandHigh[n] + 10;
  });
  drawKeys(context, query, keys, top);
  if (chosen !== null) {
    context.strokeStyle = colors.mark;
    context.globalAlpha = 0.5;
    context.strokeRect(left + chosen * pitch, 2, Math.max(pitch, 1), 192);
    context.globalAlpha = 1;
  }
  tell(products, q, k);
}

/** The keys that the query looks at most, the strongest first. */
function strongestKeys(query) {
  const { head, weights } = attended();
  const at = query * head.nKeys;
  return [...Array(head.nKeys).keys()].sort((a, b) => weights[at + b] - weights[at + a] || a - b).slice(0, MOST_KEYS);
}

/** One row per key: q∘k by dimension as colours, blue below 0 and orange above; its name and weight before it. */
function drawKeys(context, query, keys, top) {
  const { left, pitch, order } = frame;
  const { head, weights } = attended();
  const rows = keys.map((key) => terms(head, query, key));
  const most = rows.reduce((a, row) => row.reduce((b, x) => Math.max(b, Math.abs(x)), a), 0) || 1;
  rows.forEach((row, n) => {
    const y = top + n * ROW_HIGH;
    order.forEach((e, at) => {
      context.fillStyle = css(rampColor("scores", 0.5 + row[e] / (2 * most)));
      context.fillRect(left + at * pitch, y, Math.max(pitch, 0.6), ROW_HIGH - 2);
    });
    const words = `${keys[n]}:${page.keys[keys[n]].shown} ${percent(weights[query * head.nKeys + keys[n]], 1)}`;
    context.font = canvasFont(10, 600);
    context.textAlign = "left";
    context.textBaseline = "middle";
    const shown = fitLabel(context, words, 150);
    context.fillStyle = inks().surface;
    context.globalAlpha = 0.8;
    context.fillRect(left, y, context.measureText(shown).width + 6, ROW_HIGH - 2);
    context.globalAlpha = 1;
    context.fillStyle = inks().ink;
    context.fillText(shown, left + 3, y + ROW_HIGH / 2 - 1);
  });
}

function drawBand(context, { name, value, color, top, high, isProduct }) {
  const { left, pitch, order } = frame;
  const colors = inks();
  const most = order.reduce((a, e) => Math.max(a, value(e) || 0), 0);
  const least = order.reduce((a, e) => Math.min(a, value(e) || 0), 0);
  const unit = (high - 2) / (most - least || 1);
  const middle = top + 1 + most * unit;
  context.font = canvasFont(12, 600);
  context.fillStyle = isProduct ? colors.ink : color;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(name, 0, Math.max(top + 7, Math.min(top + high - 7, middle))); // whole, wherever 0 is
  context.fillStyle = colors.line;
  context.fillRect(left, middle - 0.5, pitch * order.length, 1);
  const gap = pitch > 4 ? 1 : 0;
  order.forEach((e, n) => {
    const size = value(e) * unit;
    context.fillStyle = isProduct ? (value(e) < 0 ? colors.key : colors.query) : color;
    context.globalAlpha = isProduct || n === chosen ? 1 : 0.75;
    context.fillRect(left + n * pitch, size < 0 ? middle : middle - size, Math.max(pitch - gap, 0.6), Math.abs(size));
  });
  context.globalAlpha = 1;
}

function tell(products, q, k) {
  const note = byId("neuron-note");
  const sum = products.reduce((a, b) => a + b, 0);
  if (chosen !== null) {
    const e = frame.order[chosen];
    note.textContent = `dimension ${e}: q ${exact(q(e))} × k ${exact(k(e))} = ${exact(products[e])}`;
    return;
  }
  const ranked = [...products.keys()].sort((a, b) => Math.abs(products[b]) - Math.abs(products[a]));
  const shown = ranked.slice(0, Math.min(3, ranked.length));
  const rest = sum - shown.reduce((a, e) => a + products[e], 0);
  const parts = shown.map((e) => `${products[e].toFixed(2)} [${e}]`);
  const others = products.length - shown.length;
  note.textContent = `q·k = ${parts.join(" + ")}${others ? ` + ${rest.toFixed(2)} (${others} others)` : ""} = ${exact(sum)}`
    .replaceAll("+ -", "− ").replaceAll("-", "−");
  canvasLabel(sum);
}

function canvasLabel(sum) {
  const { query, key } = shownCell();
  byId("neuron").setAttribute("aria-label",
    `q times k by dimension for query ${query} and key ${key}; the sum is ${exact(sum)}; left and right read each dimension`);
  byId("neuron").dataset.head = `${state.layer}.${state.head}`;
}
