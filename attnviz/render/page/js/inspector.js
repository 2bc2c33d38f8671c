// The chosen cell in numbers, step by step, and the whole row of its query as a table.

import { css, rampColor, weightPlace } from "./colors.js";
import { brief, byId, el, exact, percent, placedToken } from "./dom.js";
import { biasAt, entering, entropyBits, isVisible, valueLength } from "./maths.js";
import { isOwn, stageValues } from "./stages.js";
import { attended, blended, choose, isChanged, page, shownCell, sideWeights, state, untouched, whatIf } from "./state.js";

const ROWS_SHOWN = 8;
const MANY_ROWS = 64;

let showsAll = false;
let speaking = 0;
let waiting = 0;
let tableShown = "";

/** Set up the buttons that show the whole row, and the column instead. */
export function setUpInspector() {
  byId("side").addEventListener("click", () => choose({ side: state.side === "looks" ? "seen" : "looks", hover: null }));
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
  byId("peek").replaceChildren(
    el("span", {}, placedToken(page.queries[query], "is-query"), " → ", placedToken(page.keys[key], "is-key")),
    el("b", {}, percent(found.weights[query * found.head.nKeys + key])),
  );
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
    valueLength: page.hasValues ? valueLength(head, key) : 0,
    reached: head.reach ? weights[at] * head.reach[key] : null,
  };
}

function ladder(found, query, key) {
  const { head, sinkShares } = found;
  const n = numbersOf(found, query, key);
  const steps = page.hasScores
    ? [step("score", "q·k", `sum over ${head.width} dimensions`, exact(n.score)), step("scaled", "scaled", scaleWords(head), exact(n.scaled))]
    : [];
  if (n.bias !== null) {
    steps.push(step("bias", "bias", "added for the position", exact(n.bias)));
  }
  if (n.capped !== null) {
    steps.push(step("capped", "capped", `${head.softcap}·tanh(·/${head.softcap})`, exact(n.capped)));
  }
  if (!n.isVisible) {
    steps.push(step("masked", "masked", "this query may not look here", "−∞"));
  }
  const isLeftOut = found.leftOut?.has(key) ?? false;
  steps.push(step("weight", "weight", isLeftOut ? "left out as a sink" : percent(n.weight), exact(n.weight), n.weight));
  if (isChanged()) {
    steps.push(step("before", "weight before", "of the model itself", exact(untouched().weights[query * head.nKeys + key])));
  }
  if (found.left) {
    steps.push(step("left", "weight without sinks", "of this row, rescaled to 1", exact(found.left[query])));
  }
  if (isOwn(state.stage) && state.view === "heatmap") {
    const shown = stageValues(state.stage, found)[query * head.nKeys + key];
    steps.push(step("shown", "in the heatmap", byId("stage").selectedOptions[0]?.textContent ?? "", exact(shown)));
  }
  if (sinkShares[query] > 0) {
    steps.push(step("sink", "sink", "share of a learned sink, in this row", exact(sinkShares[query])));
  }
  if (!page.hasValues) {
    return steps;
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
    row.lastChild.append(bar);
  }
  return row;
}

function drawTable(found, query, key) {
  const { head } = found;
  const isSeen = state.side === "seen";
  const name = [state.layer, state.head, isSeen ? key : query, state.side, showsAll, state.theme, state.scaling,
    JSON.stringify(whatIf()), state.sinks].join();
  const body = byId("row-body");
  clearTimeout(waiting);
  if (name !== tableShown && showsAll && body.children.length > MANY_ROWS) {
    // hundreds of rows take longer than a frame: write them when the pointer rests
    waiting = setTimeout(() => {
      body.replaceChildren();
      const shown = shownCell();
      drawTable(attended(), shown.query, shown.key);
    }, 120);
    return;
  }
  if (name !== tableShown) {
    tableShown = name;
    const weights = sideWeights(query, key);
    const order = [...weights.keys()];
    if (!showsAll) {
      order.sort((a, b) => weights[b] - weights[a] || a - b);
      order.length = Math.min(ROWS_SHOWN, order.length);
    }
    body.replaceChildren(...order.map((n) => tableRow(found, isSeen ? n : query, isSeen ? key : n)));
    nameTable(found, query, key, weights);
    const button = byId("row-all");
    button.hidden = weights.length <= ROWS_SHOWN;
    button.textContent = showsAll ? `only the strongest ${ROWS_SHOWN}` : `all ${weights.length} ${isSeen ? "queries" : "keys"}, in order`;
  }
  markRow(body, isSeen ? query : key);
}

function nameTable({ head, weights }, query, key, shown) {
  const isSeen = state.side === "seen";
  byId("row-head").textContent = isSeen ? "query" : "key";
  byId("row-name").replaceChildren(...(isSeen
    ? ["Who looks at ", placedToken(page.keys[key], "is-key")]
    : ["Where ", placedToken(page.queries[query], "is-query"), " looks"]));
  byId("side").replaceChildren(...(isSeen
    ? ["where ", placedToken(page.queries[query], "is-query"), " looks"]
    : ["who looks at ", placedToken(page.keys[key], "is-key")]));
  const sum = shown.reduce((a, b) => a + b, 0);
  const bits = entropyBits(weights, query * head.nKeys, head.nKeys);
  byId("row-note").textContent = isSeen
    ? `received ${sum.toFixed(3)} of ${head.nQueries} rows, ${percent(sum / head.nQueries)} on average`
    : `entropy ${bits.toFixed(3)} bits of at most ${Math.log2(head.nKeys).toFixed(3)}`;
  byId("row-note").dataset.received = sum;
}

/** Move the mark from one row to another: with hundreds of keys, touching every row costs a frame. */
function markRow(body, key) {
  body.querySelector(".is-shown")?.classList.remove("is-shown");
  body.querySelector(`[data-key="${key}"]`)?.classList.add("is-shown");
}

function tableRow(found, query, key) {
  const { head, scores, weights } = found;
  const at = query * head.nKeys + key;
  const isSeen = state.side === "seen";
  const token = isSeen ? page.queries[query] : page.keys[key];
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.backgroundColor = css(rampColor("weights", weightPlace(weights[at], 1)));
  const pick = el("button", { type: "button", class: "plain" }, placedToken(token));
  const isLeftOut = found.leftOut?.has(key) ?? false;
  const words = isLeftOut ? "left out" : isVisible(head, query, key) ? percent(weights[at]) : "masked";
  const weight = el("td", {}, words);
  if (isChanged()) {
    weight.append(el("small", { class: "ghost", title: "before your change" }, percent(untouched().weights[at])));
  }
  const row = el("tr", { "data-key": isSeen ? query : key },
    el("th", { scope: "row" }, swatch, pick),
    el("td", {}, brief(scores[at], 4)),
    el("td", {}, brief(scores[at] * head.scale, 4)),
    weight,
    el("td", {}, percent(blended(query).share[key])));
  row.addEventListener("click", () => choose({ query, key, hover: null }));
  return row;
}

function speak(found, query, key) {
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const n = numbersOf(found, query, key);
    byId("live").textContent = `query ${query} ${page.queries[query].shown}, key ${key} ${page.keys[key].shown}: ` +
      (n.isVisible
        ? `weight ${percent(n.weight)}${page.hasValues ? `, q·k ${n.score.toFixed(3)}, scaled ${n.scaled.toFixed(3)}, share of z ${percent(n.share)}` : ""}`
        : "masked, this query may not look at this key");
  }, 150);
}
