// Take away: the row as numbers, the picture as PNG or SVG, a link with the whole choice, paper.

import { css, inkOn, inks, rampColor } from "./colors.js";
import { brief, byId } from "./dom.js";
import { isVisible } from "./maths.js";
import { hides, scaleOf, stageValues } from "./stages.js";
import { attended, headName, page, sideWeights, shownCell, state } from "./state.js";

const SVG_MAX_CELLS = 128 * 128;
const CELL = 34;
const NAMESPACE = "http://www.w3.org/2000/svg"; // the name of a language, asked of no server

/** Connect the buttons. */
export function setUpTake() {
  byId("take-numbers").addEventListener("click", () => copy(rowAsText(), "the row"));
  byId("take-link").addEventListener("click", () => copy(window.location.href, "the link"));
  byId("take-png").addEventListener("click", () => shownCanvas().toBlob((blob) => save(blob, "png")));
  byId("take-svg").addEventListener("click", () => save(new Blob([heatmapAsSvg()], { type: "image/svg+xml" }), "svg"));
  byId("take-print").addEventListener("click", () => window.print());
}

/** An SVG is of the heatmap, and of as many cells as a drawing program can take. */
export function drawTake() {
  byId("take-svg").disabled = state.view !== "heatmap" || page.queries.length * page.keys.length > SVG_MAX_CELLS;
}

function shownCanvas() {
  return byId({ heatmap: "heatmap", links: "links", grid: "grid", pair: "pair" }[state.view]);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    byId("take-note").textContent = `copied ${what}`;
  } catch {
    const box = document.createElement("textarea"); // a frame or a file may not ask for the clipboard
    box.value = text;
    document.body.append(box);
    box.select();
    byId("take-note").textContent = document.execCommand("copy") ? `copied ${what}` : "this browser gives no access to the clipboard";
    box.remove();
  }
}

function save(blob, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `attnviz-${headName()}-${state.view}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** The shown row or column as tab-separated lines: token, score, scaled, weight, all digits. */
export function rowAsText() {
  const { query, key } = shownCell();
  const { head, scores, weights } = attended();
  const isSeen = state.side === "seen";
  const lines = Array.from(sideWeights(query, key), (_, n) => {
    const at = isSeen ? n * head.nKeys + key : query * head.nKeys + n;
    const token = isSeen ? page.queries[n] : page.keys[n];
    return [n, plain(token.shown), ...(page.hasScores ? [scores[at], scores[at] * head.scale] : []), weights[at]].join("\t");
  });
  const about = `# ${headName()}, ${isSeen ? `who looks at ${key}:${plain(page.keys[key].shown)}` : `where ${query}:${plain(page.queries[query].shown)} looks`}`;
  return [about, ["place", "token", ...(page.hasScores ? ["q·k", "scaled"] : []), "weight"].join("\t"), ...lines].join("\n");
}

function plain(text) {
  return text.replace(/[\t\r\n]/g, " ");
}

/** The whole heatmap of the chosen stage as an SVG whose text is text. */
export function heatmapAsSvg() {
  const found = attended();
  const { head } = found;
  const values = stageValues(state.stage, found);
  const scale = scaleOf(state.stage, found);
  const colors = inks();
  const longest = (tokens) => Math.max(...tokens.map((token) => [...token.shown].length));
  const left = 12 + 7 * Math.min(30, longest(page.queries));
  const top = 12 + 7 * Math.min(30, longest(page.keys));
  const size = `${left + CELL * head.nKeys + 4} ${top + CELL * head.nQueries + 4}`;
  const parts = [`<svg xmlns="${NAMESPACE}" viewBox="0 0 ${size}" font-family="sans-serif" font-size="12">`,
    `<title>${markup(`${headName()}: ${page.header.text}`)}</title>`, `<rect width="100%" height="100%" fill="${colors.surface}"/>`];
  page.queries.forEach((token, i) => parts.push(`<text x="${left - 6}" y="${top + (i + 0.65) * CELL}" text-anchor="end" fill="${colors.ink}">${markup(token.shown)}</text>`));
  page.keys.forEach((token, j) => parts.push(`<text transform="translate(${left + (j + 0.65) * CELL} ${top - 6}) rotate(-90)" fill="${colors.ink}">${markup(token.shown)}</text>`));
  for (let i = 0; i < head.nQueries; i++) {
    for (let j = 0; j < head.nKeys; j++) {
      const value = values[i * head.nKeys + j];
      const isClosed = hides(state.stage) && (!isVisible(head, i, j) || found.leftOut?.has(j));
      const color = isClosed || Number.isNaN(value) ? colors.hidden : rampColor(scale.ramp, scale.place(value));
      const [x, y] = [left + j * CELL, top + i * CELL];
      parts.push(`<rect x="${x}" y="${y}" width="${CELL - 1}" height="${CELL - 1}" fill="${css(color)}"/>`);
      if (!isClosed) {
        parts.push(`<text x="${x + CELL / 2}" y="${y + CELL / 2 + 4}" text-anchor="middle" font-size="10" fill="${inkOn(color)}">${brief(value, Math.abs(value) < 10 ? 2 : 1)}</text>`);
      }
    }
  }
  return `${parts.join("\n")}\n</svg>\n`;
}

/** Text that can stand in XML: no markup, and none of the characters that XML does not have. */
function markup(text) {
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd").replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
    .replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
