// Which heads link these two tokens? The shown cell's weight in every head of every layer.

import { css, inkOn, inks, rampColor, weightPlace } from "./colors.js";
import { brief, byId, canvasFont, percent, placedToken, sizeCanvas } from "./dom.js";
import { allHeads, drawChosen, drawEdges, setUpHeadMap } from "./headmap.js";
import { argmax, attendRow } from "./maths.js";
import { headName, numbersFor, page, shownCell, sinkKeys, state, whatIf } from "./state.js";

let frame = null;
let held = { name: "", weights: [] };

/** Set up the canvas. */
export function setUpPair() {
  setUpHeadMap(byId("pair"), () => frame, readOut);
}

/** The weight that every head gives to one cell, layer by layer; one row of each head is computed. */
export function pairWeights(query, key) {
  const name = [query, key, JSON.stringify(whatIf()), state.sinks].join();
  if (held.name !== name) {
    const n = page.keys.length;
    const scores = new Float64Array(n);
    const row = new Float64Array(n);
    const left = state.sinks ? [] : sinkKeys();
    const weights = allHeads().map(({ layer, head }) => {
      attendRow(numbersFor(layer, head), query, scores, row, 0);
      for (const sink of left) {
        row[sink] = 0;
      }
      const sum = state.sinks ? 1 : row.reduce((a, b) => a + b, 0) || 1;
      return row[key] / sum;
    });
    held = { name, weights };
  }
  return held.weights;
}

/** Draw the map. */
export function drawPair() {
  const canvas = byId("pair");
  const room = canvas.parentElement.clientWidth;
  if (state.view !== "pair" || !room) {
    return;
  }
  const { query, key } = shownCell();
  byId("pair-name").replaceChildren(placedToken(page.queries[query], "is-query"), " → ", placedToken(page.keys[key], "is-key"));
  const weights = pairWeights(query, key);
  const { layers, heads } = page.header;
  const left = 34;
  const top = 22;
  const pitch = Math.max(18, Math.min(64, Math.floor((room - left - 2) / heads.length)));
  frame = { left, top, pitch, columns: heads.length, places: allHeads() };
  const context = sizeCanvas(canvas, left + pitch * heads.length + 2, top + pitch * layers.length + 2);
  drawEdges(context, frame);
  const most = state.scaling === "largest" ? Math.max(...weights) || 1 : 1;
  context.textAlign = "center";
  context.textBaseline = "middle";
  weights.forEach((weight, n) => {
    const x = left + (n % heads.length) * pitch;
    const y = top + Math.floor(n / heads.length) * pitch;
    const color = rampColor("weights", weightPlace(weight, most));
    context.fillStyle = css(color);
    context.fillRect(x + 1, y + 1, pitch - 2, pitch - 2);
    if (pitch >= 34) {
      context.fillStyle = inkOn(color);
      context.font = canvasFont(Math.min(12, pitch / 3.2));
      context.fillText(brief(weight, 2), x + pitch / 2, y + pitch / 2);
    }
  });
  context.strokeStyle = inks().line;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, pitch * heads.length + 1, pitch * layers.length + 1);
  drawChosen(context, frame);
  Object.assign(canvas.dataset, { pitch, left, top });
  readOut(null);
}

function readOut(place) {
  const { query, key } = shownCell();
  const weights = pairWeights(query, key);
  const at = place ? place.layer * page.header.heads.length + place.head : argmax(weights, 0, weights.length);
  const { layer, head } = allHeads()[at];
  const words = `${headName(layer, head)} gives ${percent(weights[at])}`;
  byId("pair-note").textContent = place ? words : `${words}, the most of all ${weights.length}; click a head to choose it, double-click to open it`;
}
