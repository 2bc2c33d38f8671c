// A canvas of layers (down) and heads (across): where a head is, keys that walk along, names at its edges.

import { inks } from "./colors.js";
import { byId, canvasFont } from "./dom.js";
import { choose, page, state } from "./state.js";

/** Choose heads on a canvas by click and arrow keys; a double click or Enter opens the heatmap. */
export function setUpHeadMap(canvas, frameOf, readOut) {
  const headAt = (event) => placeIn(canvas, frameOf(), event);
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
      openHeatmap(found);
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter") {
      openHeatmap({});
    } else if (step && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      const next = neighbor(frameOf(), step);
      choose({ ...next, hover: null });
      readOut(next);
    }
  });
}

function openHeatmap(found) {
  choose({ ...found, view: "heatmap", hover: null });
  byId("heatmap").focus();
}

function placeIn(canvas, frame, event) {
  const bounds = canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - bounds.left - frame.left) / frame.pitch);
  const row = Math.floor((event.clientY - bounds.top - frame.top) / frame.pitch);
  return column >= 0 && column < frame.columns && row >= 0 ? frame.places[row * frame.columns + column] ?? null : null;
}

function neighbor(frame, [down, right]) {
  const { places, columns } = frame;
  const at = places.findIndex(({ layer, head }) => layer === state.layer && head === state.head);
  const next = at + down * columns + right;
  const staysInRow = down !== 0 || Math.floor(next / columns) === Math.floor(at / columns);
  return places[staysInRow ? next : at] ?? places[at];
}

/** Every head of the page, layer by layer. */
export function allHeads() {
  const { layers, heads } = page.header;
  return layers.flatMap((_, layer) => heads.map((__, head) => ({ layer, head })));
}

/** Write the layers' and heads' names around a map, and frame the chosen head. */
export function drawEdges(context, frame) {
  const { left, top, pitch } = frame;
  const { layers, heads } = page.header;
  const colors = inks();
  context.font = canvasFont(11);
  context.textBaseline = "middle";
  const nth = Math.max(1, Math.ceil(24 / pitch));
  context.textAlign = "center";
  heads.forEach((number, n) => {
    if (n % nth === 0) {
      context.fillStyle = n === state.head ? colors.ink : colors.muted;
      context.fillText(`H${number}`, left + (n + 0.5) * pitch, top / 2);
    }
  });
  context.textAlign = "right";
  layers.forEach((layer, n) => {
    context.fillStyle = n === state.layer ? colors.ink : colors.muted;
    context.fillText(`L${layer.layer}`, left - 6, top + (n + 0.5) * pitch);
  });
}

/** Frame the chosen head. */
export function drawChosen(context, { left, top, pitch, columns, places }) {
  const at = places.findIndex(({ layer, head }) => layer === state.layer && head === state.head);
  context.strokeStyle = inks().mark;
  context.lineWidth = 2;
  context.strokeRect(left + (at % columns) * pitch + 0.5, top + Math.floor(at / columns) * pitch + 0.5, pitch - 1, pitch - 1);
}
