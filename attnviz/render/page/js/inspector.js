// The chosen cell in numbers, step by step, and the whole row of its query as a table.

import { css, rampColor, weightPlace } from "./colors.js";
import { brief, byId, el, exact, percent, placedToken } from "./dom.js";
import { biasAt, entering, entropyBits, isVisible, valueLength } from "./maths.js";
import { attended, blended, choose, page, shownCell, state } from "./state.js";

const ROWS_SHOWN = 8;

let showsAll = false;
let speaking = 0;
let tableShown = "";

/** Set up the button that shows the whole row. */
export function setUpInspector() {
  byId("row-all").addEventListener("click", () => {
    showsAll = !showsAll;
    tableShown = "";
    drawInspector();
  });
}

/** Write the numbers of the shown cell. */
export function drawInspector() {
  const { query, key } = shownCell();
  const found = attended();
  byId("cell-name").replaceChildren(
    placedToken(page.queries[query], "is-query"), el("span", { class: "arrow", "aria-label": "looks at" }, " → "),
    placedToken(page.keys[key], "is-key"),
  );
  byId("ladder").replaceChildren(...ladder(found, query, key));
  byId("cell").dataset.query = query;
  byId("cell").dataset.key = key;
  drawTable(found, query, key);
  speak(found, query, key);
}

/** All numbers between q·k and the share of z, for one cell. */
export function numbersOf(found, query, key) {
  const { head, scores, weights } = found;
  const at = query * head.nKeys + key;
  const score = scores[at];
  const sees = isVisible(head, query, key);
  const parts = blended(query);
  return {
    score,
    scaled: score * head.scale,
    bias: head.bias ? biasAt(head, query, key) : null,
    capped: head.softcap === null ? null : entering(head, score, query, key),
    isVisible: sees,
    weight: weights[at],
    brought: parts.brought[key],
    share: parts.share[key],
    along: parts.along ? parts.along[key] : null,
    valueLength: valueLength(head, key),
    reached: head.reach ? weights[at] * head.reach[key] : null,
  };
}

function ladder(found, query, key) {
  const { head, sinkShares } = found;
  const n = numbersOf(found, query, key);
  const steps = [step("score", "q·k", `sum over ${head.width} dimensions`, exact(n.score))];
  steps.push(step("scaled", "scaled", scaleWords(head), exact(n.scaled)));
  if (n.bias !== null) {
    steps.push(step("bias", "bias", "added for the position", exact(n.bias)));
  }
  if (n.capped !== null) {
    steps.push(step("capped", "capped", `${head.softcap}·tanh(·/${head.softcap})`, exact(n.capped)));
  }
  if (!n.isVisible) {
    steps.push(step("masked", "masked", "this query may not look here", "−∞"));
  }
  steps.push(step("weight", "weight", percent(n.weight), exact(n.weight), n.weight));
  if (sinkShares[query] > 0) {
    steps.push(step("sink", "sink", "share of a learned sink, in this row", exact(sinkShares[query])));
  }
  steps.push(step("share", "share of z", `‖weight·v‖ ${exact(n.brought)}`, percent(n.share, 4)));
  if (n.reached !== null) {
    steps.push(step("reached", "‖weight·v·W_O‖", "as it reaches the output", exact(n.reached)));
  }
  if (n.along !== null) {
    steps.push(step("along", "along z", "of ‖z‖, signed", percent(n.along, 4)));
  }
  return steps;
}

/** How scores become scaled: the divisor by name where it is √d_k. */
export function scaleWords(head) {
  const root = Math.sqrt(head.width);
  if (Math.abs(head.scale * root - 1) < 1e-6) {
    return `÷ √${head.width} = ${Number.isInteger(root) ? root : root.toFixed(4)}`;
  }
  return `× ${Number(head.scale.toPrecision(6))}`;
}

function step(name, title, how, value, share = null) {
  const row = el("div", { class: "step", "data-name": name },
    el("dt", {}, title, el("small", {}, how)), el("dd", { "data-value": name }, value));
  if (share !== null) {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${100 * share}%`;
    row.append(bar);
  }
  return row;
}

function drawTable(found, query, key) {
  const { head, weights, scores } = found;
  const name = [state.layer, state.head, query, showsAll, state.theme, state.scaling].join();
  const body = byId("row-body");
  if (name !== tableShown) {
    tableShown = name;
    const at = query * head.nKeys;
    const order = [...Array(head.nKeys).keys()];
    if (!showsAll) {
      order.sort((a, b) => weights[at + b] - weights[at + a] || a - b);
      order.length = Math.min(ROWS_SHOWN, order.length);
    }
    const parts = blended(query);
    body.replaceChildren(...order.map((j) => tableRow(j, {
      score: scores[at + j], scaled: scores[at + j] * head.scale, weight: weights[at + j],
      share: parts.share[j], sees: isVisible(head, query, j),
    })));
    const bits = entropyBits(weights, at, head.nKeys);
    byId("row-name").replaceChildren("Where ", placedToken(page.queries[query], "is-query"), " looks");
    byId("row-note").textContent = `entropy ${bits.toFixed(3)} bits of at most ${Math.log2(head.nKeys).toFixed(3)}`;
    const button = byId("row-all");
    button.hidden = head.nKeys <= ROWS_SHOWN;
    button.textContent = showsAll ? `only the strongest ${ROWS_SHOWN}` : `all ${head.nKeys} keys, in order`;
  }
  for (const row of body.children) {
    row.classList.toggle("is-shown", Number(row.dataset.key) === key);
  }
}

function tableRow(key, { score, scaled, weight, share, sees }) {
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.backgroundColor = css(rampColor("weights", weightPlace(weight, 1)));
  const pick = el("button", { type: "button", class: "plain" }, placedToken(page.keys[key]));
  const row = el("tr", { "data-key": key },
    el("th", { scope: "row" }, swatch, pick),
    el("td", {}, brief(score, 4)),
    el("td", {}, brief(scaled, 4)),
    el("td", {}, sees ? percent(weight) : "hidden"),
    el("td", {}, percent(share)));
  row.addEventListener("click", () => choose({ key, hover: null }));
  return row;
}

function speak(found, query, key) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const n = numbersOf(found, query, key);
    byId("live").textContent = `query ${query} ${page.queries[query].shown}, key ${key} ${page.keys[key].shown}: ` +
      (n.isVisible
        ? `weight ${percent(n.weight)}, q·k ${n.score.toFixed(3)}, scaled ${n.scaled.toFixed(3)}, share of z ${percent(n.share)}`
        : "hidden, this query may not look at this key");
  }, 150);
}
