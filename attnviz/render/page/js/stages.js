// The stages of a head as matrices, and what their colours stand for.

import { weightPlace } from "./colors.js";
import { entering, isVisible } from "./maths.js";
import { state } from "./state.js";

/** What the chosen stage's colours stand for: the ramp, its ends, and a value's place on it. */
export function scaleOf(stage, found) {
  if (stage === "weights") {
    const top = state.scaling === "largest" ? largestWeight(found) : 1;
    return { ramp: "weights", low: 0, high: top, place: (value) => weightPlace(value, top) };
  }
  const top = largestScore(stage, found);
  return { ramp: "scores", low: -top, high: top, place: (value) => 0.5 + value / (2 * top) };
}

function largestWeight(found) {
  found.top ??= found.weights.reduce((a, b) => (b > a ? b : a), 0) || 1;
  return found.top;
}

function largestScore(stage, found) {
  const name = `top-${stage}`;
  if (found[name] === undefined) {
    const values = stageValues(stage, found);
    found[name] = values.reduce((a, b) => Math.max(a, Number.isFinite(b) ? Math.abs(b) : 0), 0) || 1;
  }
  return found[name];
}

/** The matrix of a stage; `masked` holds what enters the softmax, NaN where hidden. */
export function stageValues(stage, found) {
  if (stage === "weights" || stage === "scores") {
    return found[stage];
  }
  if (!found[stage]) {
    const { head, scores } = found;
    found[stage] = scores.map((score, at) => {
      if (stage === "scaled") {
        return score * head.scale;
      }
      const i = Math.floor(at / head.nKeys);
      const j = at - i * head.nKeys;
      return isVisible(head, i, j) ? entering(head, score, i, j) : NaN;
    });
  }
  return found[stage];
}
