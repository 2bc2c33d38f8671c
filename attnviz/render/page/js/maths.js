// Scaled dot-product attention of one head, in double precision: q·k, scaled, bias, cap, mask, softmax.
// Vaswani et al. 2017, section 3.2.1. No page, no drawing: plain numbers in, plain numbers out.

/** The dot product of query i and key j, before any scaling. */
export function dot(head, i, j) {
  const { q, k, width } = head;
  let sum = 0;
  for (let e = 0, a = i * width, b = j * width; e < width; e++, a++, b++) {
    sum += q[a] * k[b];
  }
  return sum;
}

/** True where query i may look at key j. */
export function isVisible(head, i, j) {
  const { mask, bits, closed, nQueries, nKeys } = head;
  const place = i + nKeys - nQueries;
  if (closed && closed[j]) {
    return false;
  }
  if (mask.causal && j > place) {
    return false;
  }
  if (mask.before !== null && (j < place - mask.before || j > place + mask.after)) {
    return false;
  }
  if (mask.chunk !== null && Math.floor(j / mask.chunk) !== Math.floor(place / mask.chunk)) {
    return false;
  }
  if (bits) {
    const perRow = Math.ceil(nKeys / 8);
    return ((bits[i * perRow + (j >> 3)] >> (j & 7)) & 1) === 1;
  }
  return true;
}

/** The score added for a position, 0 where the layer has none. */
export function biasAt(head, i, j) {
  const { bias, biases, nQueries, nKeys } = head;
  if (!bias) {
    return 0;
  }
  if (bias.kind === "distance") {
    return biases[j - i + nQueries - 1];
  }
  return bias.kind === "key" ? biases[j] : biases[i * nKeys + j];
}

/** The score that enters the softmax, for a raw score q·k. */
export function entering(head, score, i, j) {
  const sum = score * head.scale + biasAt(head, i, j);
  return head.softcap === null ? sum : head.softcap * Math.tanh(sum / head.softcap);
}

/** Fill one row of scores and weights; masked cells get weight 0. Returns the share of a sink. */
export function attendRow(head, i, scores, weights, at) {
  const { nKeys, sink } = head;
  if (head.given) {
    return copyRow(head, i, scores, weights, at);
  }
  let top = sink === null ? -Infinity : sink;
  for (let j = 0; j < nKeys; j++) {
    const score = dot(head, i, j);
    scores[at + j] = score;
    if (isVisible(head, i, j)) {
      const number = entering(head, score, i, j);
      weights[at + j] = number;
      if (number > top) {
        top = number;
      }
    } else {
      weights[at + j] = -Infinity;
    }
  }
  if (top === -Infinity) {
    weights.fill(0, at, at + nKeys);
    return 0;
  }
  let total = sink === null ? 0 : Math.exp(sink - top);
  const sinkPart = total;
  for (let j = at; j < at + nKeys; j++) {
    weights[j] = Math.exp(weights[j] - top);
    total += weights[j];
  }
  for (let j = at; j < at + nKeys; j++) {
    weights[j] /= total;
  }
  return sinkPart / total;
}

/** Fill one row with weights that were given as they are; there are no scores behind them. */
function copyRow({ given, most, nKeys }, i, scores, weights, at) {
  for (let j = 0; j < nKeys; j++) {
    const held = given[i * nKeys + j];
    weights[at + j] = most ? (held / most) ** 2 : held;
    scores[at + j] = NaN;
  }
  return 0;
}

/** Compute a whole head: scores and weights, each queries × keys, and each row's sink share. */
export function attend(head) {
  const cells = head.nQueries * head.nKeys;
  const scores = new Float64Array(cells);
  const weights = new Float64Array(cells);
  const sinkShares = new Float64Array(head.nQueries);
  for (let i = 0; i < head.nQueries; i++) {
    sinkShares[i] = attendRow(head, i, scores, weights, i * head.nKeys);
  }
  return { head, scores, weights, sinkShares };
}

/** The length of value j. */
export function valueLength(head, j) {
  if (!head.v) {
    return head.lengths[j];
  }
  let sum = 0;
  for (let f = j * head.valueWidth; f < (j + 1) * head.valueWidth; f++) {
    sum += head.v[f] * head.v[f];
  }
  return Math.sqrt(sum);
}

/**
 * What each key brings into z, for one row of weights.
 *
 * `brought` is ‖weight·v‖ and `share` its part of the row's sum (Kobayashi et al. 2020, section 2);
 * `along`, where the page carries v, is the signed part of ‖z‖ that lies along z: (weight·v·z)/‖z‖².
 */
export function blend(head, weights, at = 0) {
  const { nKeys, v, valueWidth } = head;
  const brought = new Float64Array(nKeys);
  let total = 0;
  for (let j = 0; j < nKeys; j++) {
    const weight = weights[at + j];
    brought[j] = weight > 0 ? weight * valueLength(head, j) : 0;
    total += brought[j];
  }
  const share = brought.map((part) => (total > 0 ? part / total : 0));
  if (!v) {
    return { brought, share, along: null, z: null };
  }
  const z = new Float64Array(valueWidth);
  for (let j = 0; j < nKeys; j++) {
    const weight = weights[at + j];
    for (let f = 0; weight > 0 && f < valueWidth; f++) {
      z[f] += weight * v[j * valueWidth + f];
    }
  }
  const square = z.reduce((sum, x) => sum + x * x, 0);
  const along = new Float64Array(nKeys);
  for (let j = 0; j < nKeys; j++) {
    const weight = weights[at + j];
    let sum = 0;
    for (let f = 0; weight > 0 && f < valueWidth; f++) {
      sum += v[j * valueWidth + f] * z[f];
    }
    along[j] = square > 0 ? (weight * sum) / square : 0;
  }
  return { brought, share, along, z };
}

/** q∘k: the terms whose sum is q·k, one per dimension. */
export function terms(head, i, j) {
  const { q, k, width } = head;
  return Float64Array.from({ length: width }, (_, e) => q[i * width + e] * k[j * width + e]);
}

/** The entropy of a row of weights in bits. */
export function entropyBits(weights, at, n) {
  let bits = 0;
  for (let j = at; j < at + n; j++) {
    if (weights[j] > 0) {
      bits -= weights[j] * Math.log2(weights[j]);
    }
  }
  return bits;
}

/** The place of the largest entry of a row. */
export function argmax(values, at, n) {
  let best = 0;
  for (let j = 1; j < n; j++) {
    if (values[at + j] > values[at + best]) {
      best = j;
    }
  }
  return best;
}

/** Pool a matrix by maximum of size, so that one strong cell stays visible in a small picture. */
export function poolByMax(values, rows, columns, box, high, wide) {
  const pooled = new Float32Array(high * wide);
  pooled.fill(NaN);
  for (let i = 0; i < box.rows; i++) {
    const y = Math.floor((i * high) / box.rows);
    for (let j = 0; j < box.columns; j++) {
      const value = values[(box.row + i) * columns + box.column + j];
      const at = y * wide + Math.floor((j * wide) / box.columns);
      const held = pooled[at];
      if (Number.isNaN(held) || Math.abs(value) > Math.abs(held)) {
        pooled[at] = value;
      }
    }
  }
  return pooled;
}

/**
 * Attention rollout (Abnar and Zuidema 2020): the product of the layers' mean weights, each mixed
 * half and half with the token itself and its rows rescaled to sum to 1.
 */
export function rollout(maps, n) {
  let flow = null;
  for (const mean of maps) {
    const step = new Float64Array(n * n);
    for (let i = 0; i < n; i++) {
      let sum = 0.5;
      for (let j = 0; j < n; j++) {
        sum += 0.5 * mean[i * n + j];
      }
      for (let j = 0; j < n; j++) {
        step[i * n + j] = (0.5 * mean[i * n + j] + (i === j ? 0.5 : 0)) / sum;
      }
    }
    flow = flow ? product(step, flow, n) : step;
  }
  return flow;
}

function product(a, b, n) {
  const c = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let e = 0; e < n; e++) {
      const factor = a[i * n + e];
      for (let j = 0; factor !== 0 && j < n; j++) {
        c[i * n + j] += factor * b[e * n + j];
      }
    }
  }
  return c;
}

/**
 * How much of a head's weight, on average over the queries that have such a key, goes to the previous
 * token, the first, itself, where the query's token stood before (induction), and to special tokens
 * and punctuation: the patterns of `attnviz heads`. Masked cells are NaN.
 */
export function patternShares(weights, queries, keys, isSquare) {
  const sums = { previous: 0, first: 0, self: 0, induction: 0, special: 0 };
  const counts = { ...sums };
  const n = keys.length;
  const special = keys.filter((token) => token.isSpecial || /^\p{P}+$/u.test(token.label.trim())).map((token) => token.index);
  const after = new Map(); // where a token's followers stand
  queries.forEach((query, i) => {
    const row = weights.subarray(i * n, (i + 1) * n);
    const nSeen = row.reduce((count, weight) => count + !Number.isNaN(weight), 0);
    const add = (name, places) => {
      const seen = places.filter((j) => !Number.isNaN(row[j]));
      if (seen.length && seen.length < nSeen) {
        counts[name] += 1;
        sums[name] += seen.reduce((sum, j) => sum + row[j], 0);
      }
    };
    add("special", special.filter((j) => !isSquare || j !== i));
    if (isSquare) {
      add("previous", i > 0 ? [i - 1] : []);
      add("first", i > 0 ? [0] : []);
      add("self", [i]);
      add("induction", (after.get(query.id) ?? []).filter((j) => j < i));
      after.set(query.id, [...(after.get(query.id) ?? []), i + 1]);
    }
  });
  return Object.fromEntries(Object.keys(sums).map((name) => [name, counts[name] ? sums[name] / counts[name] : 0]));
}
