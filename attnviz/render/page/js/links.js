// Links: lines from every query (left) to the keys it looks at (right); strength as width and density.

import { inks } from "./colors.js";
import { byId, canvasFont, fitLabel, percent, sizeCanvas, soon } from "./dom.js";
import { attended, choose, page, shownCell, state, strongestKey } from "./state.js";

const FAINT_FROM = 0.02;

let frame = null;
let isOpen = false; // false until the chosen query was brought into sight

/** Set up the scrolled canvas: it is as high as the window on it and draws what is in sight. */
export function setUpLinks() {
  const canvas = byId("links");
  const scroller = byId("links-scroll");
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
  for (let query = first; query < Math.min(last, page.queries.length); query++) {
    if (query !== shown.query) {
      drawLines(context, query, false);
    }
  }
  drawLines(context, shown.query, true);
  drawNames(context, first, last);
}

function yOf(row) {
  return frame.pad + (row + 0.5) * frame.rowHeight - frame.scrolled;
}

function drawLines(context, query, isChosen) {
  const { weights, head } = attended();
  const colors = inks();
  const shown = shownCell();
  const { left, right, middle } = frame;
  for (let key = 0; key < head.nKeys; key++) {
    const weight = weights[query * head.nKeys + key];
    const isMarked = isChosen && key === shown.key;
    if (weight < (isChosen ? 0.001 : FAINT_FROM) && !(isMarked && weight > 0)) {
      continue;
    }
    context.strokeStyle = isMarked ? colors.key : isChosen ? colors.query : colors.muted;
    context.globalAlpha = isChosen ? 0.3 + 0.7 * Math.min(1, weight * 1.5) : 0.07 + 0.4 * weight;
    context.lineWidth = isChosen ? 0.75 + 7 * weight : 0.5 + 4 * weight;
    context.beginPath();
    context.moveTo(left + 6, yOf(query));
    context.bezierCurveTo(left + 6 + middle * 0.9, yOf(query), right - 6 - middle * 0.9, yOf(key), right - 6, yOf(key));
    context.stroke();
  }
  context.globalAlpha = 1;
}

function drawNames(context, first, last) {
  const { weights, head } = attended();
  const colors = inks();
  const shown = shownCell();
  const { left, right, rowHeight } = frame;
  context.textBaseline = "middle";
  for (let row = first; row < last; row++) {
    const query = page.queries[row];
    if (query) {
      const isChosen = row === shown.query;
      context.textAlign = "right";
      name(context, query, isChosen, colors.query, left - 2, yOf(row), left - 10);
    }
    const key = page.keys[row];
    if (key) {
      const weight = weights[shown.query * head.nKeys + row];
      context.globalAlpha = 0.14 + 0.5 * Math.min(1, weight * 1.4);
      context.fillStyle = colors.query;
      const bar = Math.max(weight * (frame.left - 12), weight > 0.004 ? 2 : 0);
      context.fillRect(right - 2, yOf(row) - rowHeight / 2 + 2, bar, rowHeight - 4);
      context.globalAlpha = 1;
      context.textAlign = "left";
      const isChosen = row === shown.key;
      const words = percent(weight, weight < 0.1 ? 1 : 0);
      const room = left - 14 - (weight >= 0.005 ? 44 : 0);
      name(context, key, isChosen, colors.key, right + 4, yOf(row), room);
      if (weight >= 0.005) {
        context.font = canvasFont(11);
        context.textAlign = "right";
        context.fillStyle = colors.muted;
        context.fillText(words, right + left - 6, yOf(row));
      }
    }
  }
}

function name(context, token, isChosen, color, x, y, room) {
  const colors = inks();
  context.font = canvasFont(13, isChosen ? 650 : 400);
  context.fillStyle = isChosen ? color : token.isSpecial ? colors.muted : colors.ink;
  context.fillText(fitLabel(context, token.shown, room), x, y);
}
