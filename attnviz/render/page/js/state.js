// What is chosen, who wants to know, and the numbers of the chosen head.

import { Numbers, readHeader, readTokens } from "./data.js";
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
  scaling: "fixed", // of the weights' colours: fixed, largest, root
  theme: "light",
};

const listeners = [];
const cache = new Map();

/** Read the page's data. */
export function openPage() {
  page.header = readHeader();
  page.numbers = new Numbers(page.header);
  page.queries = readTokens(page.header.tokens);
  page.sameTokens = page.header.key_tokens === null;
  page.keys = page.sameTokens ? page.queries : readTokens(page.header.key_tokens);
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
export function attended(layer = state.layer, head = state.head) {
  const name = `${layer}.${head}`;
  let found = cache.get(name);
  if (!found) {
    found = attend(page.numbers.head(layer, head));
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

/** What each key brings into z of a query of the chosen head. */
export function blended(query) {
  const found = attended();
  if (!found.blends.has(query)) {
    if (found.blends.size > 64) {
      found.blends.clear();
    }
    found.blends.set(query, blend(found.head, found.weights, query * found.head.nKeys));
  }
  return found.blends.get(query);
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
