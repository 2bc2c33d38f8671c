// Links: lines from every query (left) to the keys it looks at (right); strength as width and density.

import { inks } from "./colors.js";
import { byId, canvasFont, fitLabel, percent, sizeCanvas, soon } from "./dom.js";
import { attended, choose, headName, page, shownCell, sideWeights, state, strongestKey } from "./state.js";

const FAINT_FROM = 0.02;
const HUES = 12; // colours that are told apart; further heads begin anew

let frame = null;
let isOpen = false; // false until the chosen query was brought into sight
let isOverlaid = false; // every head of the layer, a colour each

/** Set up the scrolled canvas: it is as high as the window on it and draws what is in sight. */
export function setUpLinks() {
  const canvas = byId("links");
  const scroller = byId("links-scroll");
  byId("overlay").addEventListener("change", (event) => {
    isOverlaid = event.target.checked;
    soon("links", drawLinks);
  });
  scroller.addEventListener("scroll", () => soon("links", drawLinks), { passive: true });
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") {
      choose({ hover: hoverAt(event) });
    }
  });
  canvas.addEventListener("pointerleave", () => choose({ hover: null }));
  canvas.addEventListener("click", (event) => {
    const cell = hoverAt(event);
    if (cell) {
      choose({ ...cell, hover: null });
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    event.preventDefault();
    const query = Math.max(0, Math.min(page.queries.length - 1, state.query + step[0]));
    const key = Math.max(0, Math.min(page.keys.length - 1, state.key + step[1]));
    choose({ query, key: step[0] ? strongestKey(query) : key, hover: null });
    scrollTo(step[0] ? query : key);
  });
}

/** Bring a row of the links view into sight. */
export function scrollTo(row) {
  const scroller = byId("links-scroll");
  if (!frame || state.view !== "links") {
    return;
  }
  const y = frame.pad + row * frame.rowHeight;
  if (y < scroller.scrollTop + frame.rowHeight || y > scroller.scrollTop + scroller.clientHeight - 2 * frame.rowHeight) {
    scroller.scrollTop = y - scroller.clientHeight / 2;
  }
}

function hoverAt(event) {
  const bounds = byId("links").getBoundingClientRect();
  const x = event.clientX - bounds.left;
  const row = Math.floor((event.clientY - bounds.top + frame.scrolled - frame.pad) / frame.rowHeight);
  if (x < frame.right - frame.middle) {
    return row >= 0 && row < page.queries.length ? { query: row, key: strongestKey(row) } : null;
  }
  return row >= 0 && row < page.keys.length ? { query: state.query, key: row } : null;
}

/** Draw the lines and labels that are in sight. */
export function drawLinks() {
  const canvas = byId("links");
  const scroller = byId("links-scroll");
  const wide = scroller.clientWidth;
  isOpen &&= state.view === "links";
  if (state.view !== "links" || !wide) {
    return;
  }
  const nRows = Math.max(page.queries.length, page.keys.length);
  const rowHeight = nRows <= 24 ? 28 : 22;
  const pad = 10;
  const whole = nRows * rowHeight + 2 * pad;
  const high = Math.min(whole, Math.max(320, window.innerHeight * 0.75));
  byId("links-space").style.height = `${whole}px`;
  scroller.style.height = `${high}px`;
  const context = sizeCanvas(canvas, wide, high);
  const side = Math.min(wide * 0.34, 190);
  if (!isOpen) {
    isOpen = true;
    scroller.scrollTop = pad + state.query * rowHeight - high / 2;
  }
  const scrolled = scroller.scrollTop;
  frame = { rowHeight, pad, scrolled, left: side, right: wide - side, middle: (wide - 2 * side) / 2 };
  const first = Math.max(0, Math.floor((scrolled - pad) / rowHeight));
  const last = Math.min(nRows, Math.ceil((scrolled + high) / rowHeight) + 1);
  context.lineCap = "round";
  const shown = shownCell();
  if (isOverlaid) {
    drawOverlay(context, shown);
  } else {
    for (let query = first; query < Math.min(last, page.queries.length); query++) {
      drawLines(context, query, state.side === "looks" && query === shown.query);
    }
    drawLines(context, shown.query, state.side === "looks");
  }
  drawNames(context, first, last);
  nameHeads();
}

/** The colour of a head among the heads of its layer. */
function colorOfHead(head) {
  return `hsl(${Math.round((360 * (head % HUES)) / Math.min(HUES, page.header.heads.length))} 70% ${state.theme === "dark" ? 65 : 38}%)`;
}

/** Every head of the layer at once: the shown query's links (or those to the shown key), a colour each. */
function drawOverlay(context, shown) {
  page.header.heads.forEach((_, head) => {
    const { weights, head: numbers } = attended(state.layer, head);
    const isSeen = state.side === "seen";
    for (let n = 0; n < (isSeen ? numbers.nQueries : numbers.nKeys); n++) {
      const [query, key] = isSeen ? [n, shown.key] : [shown.query, n];
      const weight = weights[query * numbers.nKeys + key];
      if (weight >= FAINT_FROM) {
        line(context, query, key, colorOfHead(head), 0.25 + 0.6 * weight, 0.75 + 6 * weight);
      }
    }
  });
}

function nameHeads() {
  const key = byId("overlay-key");
  const names = isOverlaid ? page.header.heads.map((_, head) => headName(state.layer, head)) : [];
  key.replaceChildren(...names.map((words, head) => {
    const name = document.createElement("b");
    name.textContent = `${words} `;
    name.style.color = colorOfHead(head);
    return name;
  }));
}

function line(context, query, key, color, alpha, width) {
  const { left, right, middle } = frame;
  context.strokeStyle = color;
  context.globalAlpha = alpha;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(left + 6, yOf(query));
  context.bezierCurveTo(left + 6 + middle * 0.9, yOf(query), right - 6 - middle * 0.9, yOf(key), right - 6, yOf(key));
  context.stroke();
  context.globalAlpha = 1;
}

function yOf(row) {
  return frame.pad + (row + 0.5) * frame.rowHeight - frame.scrolled;
}

function drawLines(context, query, isChosen) {
  const { weights, head } = attended();
  const colors = inks();
  const shown = shownCell();
  for (let key = 0; key < head.nKeys; key++) {
    const weight = weights[query * head.nKeys + key];
    const isColumn = state.side === "seen" && key === shown.key;
    const isStrong = isChosen || isColumn;
    const isMarked = key === shown.key && query === shown.query;
    if (weight < (isStrong ? 0.001 : FAINT_FROM) && !(isMarked && weight > 0)) {
      continue;
    }
    const color = isMarked || isColumn ? colors.key : isChosen ? colors.query : colors.muted;
    line(context, query, key, color,
      isStrong ? 0.3 + 0.7 * Math.min(1, weight * 1.5) : 0.07 + 0.4 * weight, isStrong ? 0.75 + 7 * weight : 0.5 + 4 * weight);
  }
}

/** Names on both sides; bars and per cents stand beside the tokens that the shown side is about. */
function drawNames(context, first, last) {
  const colors = inks();
  const shown = shownCell();
  const isSeen = state.side === "seen";
  const weights = sideWeights(shown.query, shown.key);
  const { left, right, rowHeight } = frame;
  context.textBaseline = "middle";
  for (let row = first; row < last; row++) {
    const share = row < weights.length ? weights[row] : 0;
    const bar = share > 0 ? Math.max(share * (left - 12), share > 0.004 ? 2 : 0) : 0;
    context.globalAlpha = 0.14 + 0.3 * Math.min(1, share * 1.4);
    context.fillStyle = isSeen ? colors.key : colors.query;
    context.fillRect(isSeen ? left + 2 - bar : right - 2, yOf(row) - rowHeight / 2 + 2, bar, rowHeight - 4);
    context.globalAlpha = 1;
    const isSaid = share >= 0.005;
    const query = page.queries[row];
    if (query) {
      context.textAlign = "right";
      name(context, query, row === shown.query, colors.query, left - 2, yOf(row), left - 10 - (isSeen && isSaid ? 44 : 0));
    }
    const key = page.keys[row];
    if (key) {
      context.textAlign = "left";
      name(context, key, row === shown.key, colors.key, right + 4, yOf(row), left - 14 - (!isSeen && isSaid ? 44 : 0));
    }
    if (isSaid) {
      context.font = canvasFont(11);
      context.textAlign = isSeen ? "left" : "right";
      context.fillStyle = colors.ink;
      context.fillText(percent(share, share < 0.1 ? 1 : 0), isSeen ? 4 : right + left - 6, yOf(row));
    }
  }
}

function name(context, token, isChosen, color, x, y, room) {
  const colors = inks();
  context.font = canvasFont(13, isChosen ? 650 : 400);
  context.fillStyle = isChosen ? color : token.isSpecial ? colors.muted : colors.ink;
  context.fillText(fitLabel(context, token.shown, room), x, y);
}
