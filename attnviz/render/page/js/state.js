// What is chosen, who wants to know, and the numbers of the chosen head.

import { Numbers, readHeader, readTokens } from "./data.js";
import { changeRule, withoutSinks } from "./changes.js";
import { argmax, attend, blend } from "./maths.js";

const CACHE_MAX_CELLS = 1 << 22;

export const page = { header: null, numbers: null, queries: [], keys: [], sameTokens: true };

export const state = {
  layer: 0,
  head: 0,
  query: 0,
  key: 0,
  hover: null, // {query, key} under the pointer
  view: "heatmap",
  stage: "weights",
  scaling: "fixed", // of the weights' colours: fixed, largest, root, log
  theme: "light",
  side: "looks", // a row (where the query looks) or a column (seen: who looks at the key)
  other: 0, // the head that the chosen one is compared with, by its place in the layer
  temperature: 1, // scores are divided by it, on top of the layer's own scale
  causal: false,
  window: 0, // keys that a query may see, itself included; 0 for the layer's own rule
  hidden: "", // keys that no query may see, "3,5"
  sinks: true, // false leaves out the first and the special keys and rescales what remains
};

/** What a reader changed about the rule by which q and k become weights; null for nothing. */
export function whatIf() {
  const { temperature, causal, window, hidden } = state;
  const isChanged = temperature !== 1 || causal || window > 0 || hidden !== "";
  return isChanged ? { temperature, causal, window, hidden: hidden ? hidden.split(",").map(Number) : [] } : null;
}

const listeners = [];
const cache = new Map();

/** Read the page's data. */
export function openPage() {
  page.header = readHeader();
  page.numbers = new Numbers(page.header);
  page.hasScores = page.header.holds !== "weights"; // or weights alone, as they were given
  page.hasValues = page.hasScores && page.header.holds !== "no values";
  document.documentElement.dataset.holds = page.header.holds ?? "all";
  page.queries = readTokens(page.header.tokens);
  page.sameTokens = page.header.key_tokens === null;
  page.keys = page.sameTokens ? page.queries : readTokens(page.header.key_tokens);
  state.sinks = page.header.start.sinks !== false;
}

/** Call `listener(changed)` after every change, `changed` being the set of changed names. */
export function onChange(listener) {
  listeners.push(listener);
}

/** Change what is chosen. */
export function choose(patch) {
  const changed = new Set();
  for (const [name, value] of Object.entries(patch)) {
    if (!isSame(state[name], value)) {
      state[name] = value;
      changed.add(name);
    }
  }
  if (changed.size) {
    for (const listener of listeners) {
      listener(changed);
    }
  }
}

function isSame(a, b) {
  return a === b || (a && b && typeof a === "object" && a.query === b.query && a.key === b.key);
}

/** The cell to describe: under the pointer, or the chosen one. */
export function shownCell() {
  return state.hover ?? { query: state.query, key: state.key };
}

/** Scores and weights of the chosen head (or of another one). */
export function attended(layer = state.layer, head = state.head, change = whatIf(), sinks = state.sinks) {
  const name = [layer, head, JSON.stringify(change), sinks].join();
  let found = cache.get(name);
  if (!found) {
    found = attend(numbersFor(layer, head, change));
    if (!sinks) {
      withoutSinks(found, sinkKeys());
    }
    found.blends = new Map();
  }
  cache.delete(name);
  cache.set(name, found);
  let cells = 0;
  for (const old of [...cache.keys()].reverse()) {
    cells += cache.get(old).weights.length;
    if (cells > CACHE_MAX_CELLS && old !== name) {
      cache.delete(old);
    }
  }
  return found;
}

/** The chosen head (or another) as the source has it, whatever was changed here. */
export function untouched(layer = state.layer, head = state.head) {
  return attended(layer, head, null, true);
}

/** True where the shown weights are other than the source's. */
export function isChanged() {
  return whatIf() !== null || !state.sinks;
}

/** q, k and the rule of a head, with the reader's changes. */
export function numbersFor(layer, head, change = whatIf()) {
  const numbers = page.numbers.head(layer, head);
  return change ? changeRule(numbers, change) : numbers;
}

/** The keys that sinks are: the first token, and tokens that the tokenizer added. */
export function sinkKeys() {
  return page.keys.filter((token) => token.index === 0 || token.isSpecial).map((token) => token.index);
}

/** What each key brings into z of a query of the chosen head. */
export function blended(query) {
  const found = attended();
  if (!page.hasValues) {
    const none = new Float64Array(found.head.nKeys);
    return { brought: none, share: none, along: null, z: null };
  }
  if (!found.blends.has(query)) {
    if (found.blends.size > 64) {
      found.blends.clear();
    }
    found.blends.set(query, blend(found.head, found.weights, query * found.head.nKeys));
  }
  return found.blends.get(query);
}

/** The shown query's weights on every key, or every query's weight on the shown key. */
export function sideWeights(query, key) {
  const { weights, head } = attended();
  return state.side === "looks"
    ? weights.subarray(query * head.nKeys, (query + 1) * head.nKeys)
    : Float64Array.from({ length: head.nQueries }, (_, i) => weights[i * head.nKeys + key]);
}

/** The key that a query of the chosen head looks at most. */
export function strongestKey(query) {
  const found = attended();
  return argmax(found.weights, query * found.head.nKeys, found.head.nKeys);
}

/** `L5.H3`, by the source's own numbers. */
export function headName(layer = state.layer, head = state.head) {
  return `L${page.header.layers[layer].layer}.H${page.header.heads[head]}`;
}
