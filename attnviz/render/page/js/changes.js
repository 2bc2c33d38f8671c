// What if: another temperature, mask or window, hidden keys; and weights without their sinks.

/** A head whose rule is changed; q and k stay. A window is W keys: centred, or the last W where causal. */
export function changeRule(head, { temperature, causal, window, hidden }) {
  const mask = { ...head.mask };
  if (causal && !mask.causal) {
    mask.causal = true;
    if (mask.before !== null) {
      Object.assign(mask, { before: mask.before + mask.after, after: 0 }); // the same number of keys
    }
  }
  if (window > 0) {
    const before = mask.causal ? window - 1 : window >> 1; // as attnviz --window
    Object.assign(mask, { before, after: mask.causal ? 0 : window - 1 - before });
  }
  const closed = new Uint8Array(head.nKeys);
  for (const key of hidden) {
    closed[key] = 1;
  }
  return { ...head, scale: head.scale / temperature, mask, closed: hidden.length ? closed : null };
}

/** Leave keys out of a head's weights and rescale each row; `left` is what a row had without them. */
export function withoutSinks(found, keys) {
  const { head, weights } = found;
  found.leftOut = new Set(keys);
  found.left = new Float64Array(head.nQueries);
  for (let i = 0; i < head.nQueries; i++) {
    const row = weights.subarray(i * head.nKeys, (i + 1) * head.nKeys);
    for (const key of keys) {
      row[key] = 0;
    }
    const sum = row.reduce((a, b) => a + b, 0);
    found.left[i] = sum;
    if (sum > 0) {
      row.forEach((weight, j) => {
        row[j] = weight / sum;
      });
    }
  }
}
