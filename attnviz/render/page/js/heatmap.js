// The heatmap: query down, key across; zoom, pan, hover, click and arrow keys.

import { css, inkOn, inks, rampColor, rampTable } from "./colors.js";
import { brief, byId, canvasFont, fitLabel, sizeCanvas, soon } from "./dom.js";
import { isVisible, poolByMax } from "./maths.js";
import { hides, scaleOf, stageValues } from "./stages.js";
import { attended, choose, page, shownCell, state, whatIf } from "./state.js";

const MAX_CELL = 92;
const MIN_SPAN = 6;
const NUMBERS_FROM = 38;
const LABELS_FROM = 11;
const LONGEST_NAME = 220; // pixels; a name of a hundred letters is cut
const LEGEND_HIGH = 64; // what stands below the picture, and its frame

let span = 0; // tokens shown along the longer axis; 0 shows all
let corner = { row: 0, column: 0 };
let frame = null; // the geometry of the last drawing
let picture = { key: "", canvas: null };

/** Set up the canvas: pointer, keys, zoom buttons. */
export function setUpHeatmap() {
  const canvas = byId("heatmap");
  canvas.addEventListener("pointermove", (event) => {
    const drag = canvas.drag;
    if (drag) {
      moveBy(drag, event);
    } else if (event.pointerType === "mouse" || event.buttons) {
      choose({ hover: cellAt(event) });
    }
  });
  canvas.addEventListener("pointerleave", () => choose({ hover: null }));
  canvas.addEventListener("pointerdown", (event) => {
    if (span) {
      canvas.setPointerCapture(event.pointerId);
      canvas.drag = { x: event.clientX, y: event.clientY, ...corner, far: false };
    }
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, () => {
      canvas.dragged = canvas.drag?.far;
      canvas.drag = null;
    });
  }
  canvas.addEventListener("click", (event) => {
    const cell = canvas.dragged ? null : cellAt(event);
    if (cell) {
      choose({ ...cell, hover: null });
    }
  });
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey) {
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.25 : 0.8, cellAt(event));
    }
  }, { passive: false });
  canvas.addEventListener("keydown", onKey);
  byId("zoom-in").addEventListener("click", () => zoom(2));
  byId("zoom-out").addEventListener("click", () => zoom(0.5));
  byId("zoom-fit").addEventListener("click", () => zoom(0));
}

function onKey(event) {
  const last = { query: page.queries.length - 1, key: page.keys.length - 1 };
  const steps = {
    ArrowUp: { query: -1 }, ArrowDown: { query: 1 }, ArrowLeft: { key: -1 }, ArrowRight: { key: 1 },
    PageUp: { query: -10 }, PageDown: { query: 10 }, Home: { key: -last.key }, End: { key: last.key },
  };
  const zooms = { "+": 2, "=": 2, "-": 0.5, 0: 0 };
  if (event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (event.key in zooms) {
    event.preventDefault();
    zoom(zooms[event.key]);
    return;
  }
  const step = steps[event.key];
  if (step) {
    event.preventDefault();
    const query = Math.max(0, Math.min(last.query, state.query + (step.query ?? 0)));
    const key = Math.max(0, Math.min(last.key, state.key + (step.key ?? 0)));
    choose({ query, key, hover: null });
  }
}

/** Zoom around a cell; 0 shows everything. */
export function zoom(factor, around = null) {
  const whole = Math.max(page.queries.length, page.keys.length);
  const center = around ?? { query: state.query, key: state.key };
  const next = factor === 0 ? whole : Math.round((span || whole) / factor);
  span = next >= whole ? 0 : Math.max(Math.min(MIN_SPAN, whole), next);
  corner = { row: center.query - (span >> 1), column: center.key - (span >> 1) };
  clampCorner();
  byId("heatmap").classList.toggle("is-zoomed", span > 0);
  soon("heatmap", drawHeatmap);
}

function moveBy(drag, event) {
  const columns = (drag.x - event.clientX) / frame.cell;
  const rowsMoved = (drag.y - event.clientY) / frame.cell;
  drag.far ||= Math.hypot(drag.x - event.clientX, drag.y - event.clientY) > 4;
  corner = { row: Math.round(drag.row + rowsMoved), column: Math.round(drag.column + columns) };
  clampCorner();
  soon("heatmap", drawHeatmap);
}

function clampCorner() {
  const box = shownBox();
  corner.row = Math.max(0, Math.min(corner.row, page.queries.length - box.rows));
  corner.column = Math.max(0, Math.min(corner.column, page.keys.length - box.columns));
}

function shownBox() {
  return {
    row: span ? corner.row : 0,
    column: span ? corner.column : 0,
    rows: span ? Math.min(span, page.queries.length) : page.queries.length,
    columns: span ? Math.min(span, page.keys.length) : page.keys.length,
  };
}

/** Move the window so that the chosen cell is inside it. */
export function followChoice() {
  if (!span) {
    return;
  }
  const box = shownBox();
  corner.row = Math.max(state.query - box.rows + 1, Math.min(corner.row, state.query));
  corner.column = Math.max(state.key - box.columns + 1, Math.min(corner.column, state.key));
  clampCorner();
}

function cellAt(event) {
  const bounds = byId("heatmap").getBoundingClientRect();
  const column = Math.floor((event.clientX - bounds.left - frame.left) / frame.cell);
  const row = Math.floor((event.clientY - bounds.top - frame.top) / frame.cell);
  if (row < 0 || column < 0 || row >= frame.box.rows || column >= frame.box.columns) {
    return null;
  }
  return { query: frame.box.row + row, key: frame.box.column + column };
}

/** Where a cell is on the canvas, in CSS pixels: for tests and for scrolling. */
export function placeOf(query, key) {
  return {
    x: frame.left + (key - frame.box.column + 0.5) * frame.cell,
    y: frame.top + (query - frame.box.row + 0.5) * frame.cell,
  };
}

/** Draw the window of the chosen stage, its labels, the numbers while they fit, and the marks. */
export function drawHeatmap() {
  const canvas = byId("heatmap");
  const room = canvas.parentElement.clientWidth;
  if (state.view !== "heatmap" || !room) {
    return;
  }
  const found = attended();
  const values = stageValues(state.stage, found);
  const box = shownBox();
  frame = measure(canvas, room, box);
  const context = sizeCanvas(canvas, room, frame.top + frame.cell * box.rows + 2);
  const scale = scaleOf(state.stage, found);
  drawCells(context, found, values, scale);
  if (frame.cell >= NUMBERS_FROM) {
    writeNumbers(context, found, values, scale);
  }
  drawLabels(context);
  drawMarks(context);
  canvas.dataset.left = frame.left;
  canvas.dataset.top = frame.top;
  canvas.dataset.cell = frame.cell;
  canvas.dataset.row = box.row;
  canvas.dataset.column = box.column;
}

/** Whole key names above whole cells; where the window is high enough, all of it without scrolling. */
function measure(canvas, room, box) {
  const context = canvas.getContext("2d");
  context.font = canvasFont(12, 650); // as bold as a chosen name
  const widest = (tokens, from, n) =>
    tokens.slice(from, from + n).reduce((w, t) => Math.max(w, context.measureText(t.shown).width), 0);
  const left = Math.ceil(Math.min(Math.max(76, room * 0.28), 160, widest(page.queries, box.row, box.rows) + 10));
  const keysWide = widest(page.keys, box.column, box.columns);
  const top = (isFlat) => (isFlat ? 24 : Math.ceil(Math.min(LONGEST_NAME, keysWide + 10)));
  const fit = Math.min((room - left - 2) / box.columns, MAX_CELL);
  const cellUnder = (above) => whole(Math.min(fit, Math.max((roomBelow(canvas) - above) / box.rows, 1)));
  const isFlat = keysWide + 8 <= cellUnder(top(true));
  return { box, left, top: top(isFlat), cell: cellUnder(top(isFlat)), isFlat };
}

/** Cells of whole device pixels, so that their edges are sharp. */
function whole(cell) {
  const ratio = window.devicePixelRatio || 1;
  return cell * ratio >= 3 ? Math.floor(cell * ratio) / ratio : cell;
}

/** How high the picture may be: what the window leaves below the canvas, or nearly all of it. */
function roomBelow(canvas) {
  const above = canvas.getBoundingClientRect().top + window.scrollY;
  const left = window.innerHeight - above - LEGEND_HIGH;
  const isNarrow = window.innerWidth < 480; // a phone scrolls down: cells as wide as they can be
  return isNarrow ? Infinity : left >= 260 ? left : Math.max(240, Math.min(window.innerHeight * 0.86, 900));
}

function drawCells(context, found, values, scale) {
  const { box, left, top, cell } = frame;
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.min(box.columns, Math.ceil(box.columns * cell * ratio));
  const high = Math.min(box.rows, Math.ceil(box.rows * cell * ratio));
  const name = [state.layer, state.head, state.stage, state.other, JSON.stringify(whatIf()), state.sinks,
    state.scaling, state.theme, wide, high, box.row, box.column, box.rows, box.columns].join();
  if (picture.key !== name) {
    picture = { key: name, canvas: paint(found, values, scale, wide, high) };
  }
  context.imageSmoothingEnabled = false;
  context.drawImage(picture.canvas, left, top, box.columns * cell, box.rows * cell);
  if (cell >= 14) {
    context.fillStyle = inks().surface;
    for (let n = 1; n < box.columns; n++) {
      context.fillRect(left + n * cell - 0.5, top, 1, box.rows * cell);
    }
    for (let n = 1; n < box.rows; n++) {
      context.fillRect(left, top + n * cell - 0.5, box.columns * cell, 1);
    }
    hatchHidden(context, found);
  }
  context.strokeStyle = inks().line;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, box.columns * cell + 1, box.rows * cell + 1);
}

function paint(found, values, scale, wide, high) {
  const { box } = frame;
  const { head } = found;
  const shown = poolByMax(values, head.nQueries, head.nKeys, box, high, wide);
  const table = rampTable(scale.ramp);
  const { hidden } = inks();
  const image = new ImageData(wide, high);
  for (let y = 0; y < high; y++) {
    for (let x = 0; x < wide; x++) {
      const at = y * wide + x;
      const value = shown[at];
      const i = box.row + Math.floor((y * box.rows) / high);
      const j = box.column + Math.floor((x * box.columns) / wide);
      const isHidden = hides(state.stage) && isClosed(found, i, j) && !(Math.abs(value) > 0);
      const shade = isHidden || Number.isNaN(value) ? -1 : Math.round(255 * clamp(scale.place(value)));
      for (let c = 0; c < 3; c++) {
        image.data[at * 4 + c] = shade < 0 ? hidden[c] : table[shade * 3 + c];
      }
      image.data[at * 4 + 3] = 255;
    }
  }
  const canvas = document.createElement("canvas");
  canvas.width = wide;
  canvas.height = high;
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function clamp(share) {
  return Math.max(0, Math.min(1, share));
}

/** True where a query may not look, or the key is left out as a sink. */
function isClosed({ head, leftOut }, i, j) {
  return !isVisible(head, i, j) || (leftOut?.has(j) ?? false);
}

function hatchHidden(context, found) {
  if (!hides(state.stage)) {
    return;
  }
  const { box, left, top, cell } = frame;
  context.strokeStyle = css(inks().hatch);
  context.lineWidth = 1;
  context.beginPath();
  for (let i = 0; i < box.rows; i++) {
    for (let j = 0; j < box.columns; j++) {
      if (isClosed(found, box.row + i, box.column + j)) {
        context.moveTo(left + j * cell + 2, top + (i + 1) * cell - 2);
        context.lineTo(left + (j + 1) * cell - 2, top + i * cell + 2);
      }
    }
  }
  context.stroke();
}

function writeNumbers(context, found, values, scale) {
  const { nKeys } = found.head;
  const { box, left, top, cell } = frame;
  context.font = canvasFont(Math.min(13, cell / 3.4));
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let i = 0; i < box.rows; i++) {
    for (let j = 0; j < box.columns; j++) {
      const query = box.row + i;
      const key = box.column + j;
      const value = values[query * nKeys + key];
      if (hides(state.stage) && isClosed(found, query, key)) {
        continue;
      }
      const digits = Math.abs(value) < 10 ? 2 : 1;
      context.fillStyle = inkOn(rampColor(scale.ramp, scale.place(value)));
      context.fillText(brief(value, digits), left + (j + 0.5) * cell, top + (i + 0.5) * cell + 0.5);
    }
  }
}

/** Every label while there is room, then every n-th; returns n. */
function stepOf(cell) {
  return cell >= LABELS_FROM ? 1 : Math.ceil(LABELS_FROM / cell);
}

function drawLabels(context) {
  const { box, left, top, cell, isFlat } = frame;
  const size = Math.max(9, Math.min(12, cell - 1 < 9 ? 10 : cell - 1));
  const step = stepOf(cell);
  const cellShown = shownCell();
  const colors = inks();
  let cut = 0;
  const fit = (text, width) => {
    const fitted = fitLabel(context, text, width);
    cut += fitted !== text;
    return fitted;
  };
  context.textBaseline = "middle";
  const label = (token, isChosen, color) => {
    context.font = canvasFont(size, isChosen ? 650 : 400);
    context.fillStyle = isChosen ? color : token.isSpecial ? colors.muted : colors.ink;
  };
  for (let i = 0; i < box.rows; i++) {
    const token = page.queries[box.row + i];
    const isChosen = token.index === cellShown.query;
    if (isChosen || (i % step === 0 && isFarFrom(i, cellShown.query - box.row, step))) {
      label(token, isChosen, colors.query);
      context.textAlign = "right";
      context.fillText(fit(token.shown, left - 8), left - 6, top + (i + 0.5) * cell);
    }
  }
  for (let j = 0; j < box.columns; j++) {
    const token = page.keys[box.column + j];
    const isChosen = token.index === cellShown.key;
    if (!isChosen && (j % step !== 0 || !isFarFrom(j, cellShown.key - box.column, step))) {
      continue;
    }
    label(token, isChosen, colors.key);
    context.save();
    context.translate(left + (j + 0.5) * cell, top - 6);
    if (isFlat) {
      context.textAlign = "center";
      context.textBaseline = "alphabetic";
    } else {
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
    }
    context.fillText(fit(token.shown, isFlat ? cell : top - 8), 0, 0);
    context.restore();
  }
  byId("heatmap").dataset.cut = cut; // how many names did not fit
  byId("label-note").textContent = step > 1 ? `every ${step}${step === 2 ? "nd" : step === 3 ? "rd" : "th"} token is labelled; zoom in to see each` : "";
}

function isFarFrom(n, chosen, step) {
  return step === 1 || chosen < 0 || Math.abs(n - chosen) >= step;
}

function drawMarks(context) {
  const { box, left, top, cell } = frame;
  const colors = inks();
  const outline = (query, key, color, width) => {
    const row = query - box.row;
    const column = key - box.column;
    if (row >= 0 && column >= 0 && row < box.rows && column < box.columns) {
      const grow = Math.max(0, 5 - cell / 2);
      context.strokeStyle = color;
      context.lineWidth = width;
      context.strokeRect(left + column * cell - grow, top + row * cell - grow, cell + 2 * grow, cell + 2 * grow);
    }
  };
  const row = shownCell().query - box.row;
  const column = shownCell().key - box.column;
  context.globalAlpha = 0.55;
  context.lineWidth = 1;
  if (state.side === "looks" && row >= 0 && row < box.rows) {
    context.strokeStyle = colors.query;
    context.strokeRect(left, top + row * cell, box.columns * cell, cell);
  }
  if (state.side === "seen" && column >= 0 && column < box.columns) {
    context.strokeStyle = colors.key;
    context.strokeRect(left + column * cell, top, cell, box.rows * cell);
  }
  context.globalAlpha = 1;
  outline(state.query, state.key, colors.surface, 4);
  outline(state.query, state.key, colors.mark, 2);
  if (state.hover) {
    outline(state.hover.query, state.hover.key, colors.mark, 1);
  }
}
