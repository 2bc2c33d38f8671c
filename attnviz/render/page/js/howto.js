// How to read this: the formula with the real numbers of the chosen cell; and where they came from.

import { byId, el, exact, percent, placedToken } from "./dom.js";
import { isVisible } from "./maths.js";
import { numbersOf, scaleWords } from "./inspector.js";
import { attended, headName, page, shownCell } from "./state.js";

/** Write the walk from q·k to z for the shown cell. */
export function drawHowTo() {
  if (!byId("howto").open || !page.hasValues) {
    return;
  }
  const { query, key } = shownCell();
  const found = attended();
  const { head } = found;
  const n = numbersOf(found, query, key);
  const from = () => placedToken(page.queries[query], "is-query");
  const to = () => placedToken(page.keys[key], "is-key");
  let seen = 0;
  for (let j = 0; j < head.nKeys; j++) {
    seen += isVisible(head, query, j) ? 1 : 0;
  }
  const last = n.capped ?? n.scaled + (n.bias ?? 0);
  const steps = [
    ["In head ", headName(), " every token has a query q, a key k and a value v. The query of ", from(),
      " is compared with the key of ", to(), ` by their dot product, a sum of ${head.width} terms: q·k = ${exact(n.score)}.`],
    [`It is scaled, ${scaleWords(head)}, so that long vectors do not drown everything else: ${exact(n.scaled)}.` +
      (n.bias === null ? "" : ` A bias for the position is added: ${exact(n.bias)}.`) +
      (n.capped === null ? "" : ` It is bounded softly: ${exact(n.capped)}.`)],
    n.isVisible
      ? [`The softmax turns the ${seen} scores of this row into weights that sum to ` +
          `${found.sinkShares[query] > 0 ? "1 less the share of a learned sink" : "1"}: e^${last.toFixed(4)} divided by the sum of all of them is ${exact(n.weight)}, or ${percent(n.weight)}.`]
      : ["The mask hides this key from this query: its score becomes −∞ and its weight exactly 0."],
    ["The output z of ", from(), " is the sum of all values, each times its weight. ", to(),
      ` brings ${exact(n.weight)} · v, a vector of length ${exact(n.brought)}: ${percent(n.share)} of the lengths brought in all.`],
  ];
  byId("howto-steps").replaceChildren(...steps.map((parts) => el("li", {}, ...parts)));
}

function count(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}

/** Fill the panel that says where the numbers came from. */
export function drawAbout() {
  const { source, run, numbers, weight_error: error, has_values: hasValues, layers, heads, notices } = page.header;
  const overrides = Object.entries(run.overrides).map(([name, value]) => `${name} ${value}`).join(", ");
  const facts = [
    ["source", `${source.kind}: ${source.name}`],
    ["sha256", source.sha256],
    ["origin", source.origin],
    ["seed", source.seed],
    ["tokenizer", source.tokenizer],
    ["tokenizer sha256", source.tokenizer_sha256],
    ["model", `${count(source.n_layers, "layer")}, ${count(source.n_heads, "head")} on ${count(source.n_kv_heads, "key/value head")}, ` +
      `d_model ${source.d_model}, d_k ${source.d_k}, d_v ${source.d_v}`],
    ["shown", `${count(layers.length, "layer")}, ${count(heads.length, "head")}, ${count(page.queries.length, "token")}`],
    ["computed with", `attnviz ${run.version}, ${run.core} on ${run.device}, ${run.dtype}`],
    ["changed by you", overrides],
    ["numbers held", !page.hasScores ? `weights as they were given, in ${numbers}` : numbers === "int16"
      ? "q and k in 16 bits with a step for every row (compact); everything else is computed from them here, in double precision"
      : `q and k in ${numbers}; everything else is computed from them here, in double precision`],
    ["largest weight error", error === 0 ? "0: the numbers are held as they were computed" : `${error.toExponential(2)}, from holding them so`],
    ["values", hasValues ? "held whole" : "held as their lengths ‖v‖, which is what a share of z needs"],
    ["notices", notices.join(" · ")],
  ];
  const rows = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("bdi", {}, String(value)))));
  byId("about-facts").replaceChildren(...rows);
  const note = byId("precision-note");
  note.hidden = error === 0 || (numbers !== "int16" && page.hasScores);
  note.textContent = `compact: weights are right within ${error.toExponential(1)}`;
}
