// The stages of a head as matrices, and what their colours stand for.

import { weightPlace } from "./colors.js";
import { entering, isVisible, rollout, valueLength } from "./maths.js";
import { attended, page, state, untouched } from "./state.js";

const STAGES = {
  weights: { name: "weights", ramp: "weights", fill: (found) => found.weights },
  masked: { name: "what enters the softmax", fill: (found) => overCells(found, masked) },
  scaled: { name: "scaled scores", fill: (found) => overCells(found, ({ head, scores }, at) => scores[at] * head.scale) },
  scores: { name: "scores q·k", fill: (found) => found.scores },
  share: { name: "share of z", ramp: "weights", fill: shares },
  reached: { name: "‖weight·v·W_O‖", ramp: "weights", top: true, fill: (found) => brought(found, found.head.reach) },
  mean: { name: "mean of the layer's heads", ramp: "weights", fill: () => overHeads((sum, weight, n) => sum + weight / n) },
  max: { name: "largest of the layer's heads", ramp: "weights", fill: () => overHeads((sum, weight) => Math.max(sum, weight)) },
  rollout: { name: "rollout up to this layer", ramp: "weights", fill: flow },
  change: { name: "change by your what-if", fill: (found) => difference(found, untouched()) },
  versus: { name: "difference from head", fill: (found) => difference(found, attended(state.layer, state.other)) },
};

/** The stages by name, and whether each can be shown of what the page holds. */
export function stageNames() {
  const heads = page.header.heads.length;
  const isSquare = page.sameTokens;
  const can = {
    masked: page.hasScores,
    scaled: page.hasScores,
    scores: page.hasScores,
    share: page.hasValues,
    reached: page.header.layers.every((layer) => "reach" in layer.blocks),
    mean: heads > 1,
    max: heads > 1,
    versus: heads > 1,
    rollout: isSquare && page.header.layers.length > 1 && heads === page.header.source.n_heads && page.header.layers[0].layer === 0,
  };
  return Object.entries(STAGES).map(([id, { name }]) => ({ id, name, can: can[id] ?? true }));
}

/** True where a stage's cells that the mask closes are hatched. */
export function hides(stage) {
  return stage !== "scores" && stage !== "scaled" && stage !== "mean" && stage !== "max" && stage !== "rollout";
}

/** True where a stage is about a matrix of its own, whose number the cell's own steps do not hold. */
export function isOwn(stage) {
  return !["weights", "masked", "scaled", "scores", "share", "reached"].includes(stage);
}

/** What the chosen stage's colours stand for: the ramp, its ends, and a value's place on it. */
export function scaleOf(stage, found) {
  if (STAGES[stage].ramp === "weights") {
    const top = STAGES[stage].top || state.scaling === "largest" ? largest(stage, found) : 1;
    return { ramp: "weights", low: 0, high: top, place: (value) => weightPlace(value, top) };
  }
  const top = largest(stage, found);
  return { ramp: "scores", low: -top, high: top, place: (value) => 0.5 + value / (2 * top) };
}

function largest(stage, found) {
  const values = stageValues(stage, found);
  if (!found.tops.has(values)) {
    found.tops.set(values, values.reduce((a, b) => Math.max(a, Number.isFinite(b) ? Math.abs(b) : 0), 0) || 1);
  }
  return found.tops.get(values);
}

/** The matrix of a stage; `masked` holds what enters the softmax, NaN where the mask closes a cell. */
export function stageValues(stage, found) {
  const name = stage === "versus" ? `versus ${state.other}` : stage;
  found.stages ??= new Map();
  found.tops ??= new Map();
  if (!found.stages.has(name)) {
    found.stages.set(name, STAGES[stage].fill(found));
  }
  return found.stages.get(name);
}

function overCells(found, number) {
  return found.scores.map((_, at) => number(found, at));
}

function masked({ head, scores }, at) {
  const i = Math.floor(at / head.nKeys);
  const j = at - i * head.nKeys;
  return isVisible(head, i, j) ? entering(head, scores[at], i, j) : NaN;
}

function brought(found, lengths) {
  const { nKeys } = found.head;
  return found.weights.map((weight, at) => weight * lengths[at % nKeys]);
}

function shares(found) {
  const { head } = found;
  const lengths = Float64Array.from({ length: head.nKeys }, (_, j) => valueLength(head, j));
  const parts = brought(found, lengths);
  for (let i = 0; i < head.nQueries; i++) {
    const row = parts.subarray(i * head.nKeys, (i + 1) * head.nKeys);
    const sum = row.reduce((a, b) => a + b, 0);
    row.forEach((part, j) => {
      row[j] = sum > 0 ? part / sum : 0;
    });
  }
  return parts;
}

function difference(found, other) {
  return found.weights.map((weight, at) => weight - other.weights[at]);
}

function overHeads(join, layer = state.layer) {
  const n = page.header.heads.length;
  let all = null;
  for (let head = 0; head < n; head++) {
    const { weights } = attended(layer, head);
    all ??= new Float64Array(weights.length);
    weights.forEach((weight, at) => {
      all[at] = join(all[at], weight, n);
    });
  }
  return all;
}

function flow() {
  const maps = [];
  for (let layer = 0; layer <= state.layer; layer++) {
    maps.push(overHeads((sum, weight, n) => sum + weight / n, layer));
  }
  return rollout(maps, page.queries.length);
}
