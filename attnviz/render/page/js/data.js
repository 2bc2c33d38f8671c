// What the page carries: the header, the tokens, and blocks of numbers decoded when first needed.

const KINDS = {
  float64: Float64Array,
  float32: Float32Array,
  int16: Int16Array,
  uint16: Uint16Array,
  uint8: Uint8Array,
};
const MOST = { uint16: 65535, uint8: 255 }; // a weight is (n / most)²

/** Read the header that the program wrote into the page. */
export function readHeader() {
  return JSON.parse(document.getElementById("page-header").textContent);
}

/** Turn columns of tokens into one object per token. */
export function readTokens(columns) {
  const special = new Set(columns.special);
  return columns.labels.map((label, index) => ({
    index,
    label,
    shown: columns.shown[index] ?? label,
    id: columns.ids[index],
    span: columns.spans[index],
    isSpecial: special.has(index),
  }));
}

/** Decode a block of base64 into bytes. */
export function decodeBlock(name) {
  const text = document.getElementById(`block-${name}`).textContent;
  if (typeof Uint8Array.fromBase64 === "function") {
    return Uint8Array.fromBase64(text);
  }
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) {
    bytes[i] = raw.charCodeAt(i);
  }
  return bytes;
}

/** Numbers of every head, layer by layer; a layer is decoded when it is first looked at. */
export class Numbers {
  constructor(header) {
    this.header = header;
    this.nQueries = header.tokens.labels.length;
    this.nKeys = (header.key_tokens ?? header.tokens).labels.length;
    this.layers = new Map();
    this.shared = new Map();
  }

  /** Everything the arithmetic of one head needs; arrays are views where nothing is rounded. */
  head(layerIndex, headIndex) {
    const facts = this.header.layers[layerIndex];
    const layer = this.layer(layerIndex);
    const kv = this.header.kv_index[headIndex];
    const { nQueries, nKeys } = this;
    if (layer.given) {
      const given = part(layer.given, this.header.heads.length, headIndex);
      return {
        nQueries, nKeys, width: 0, valueWidth: 0, given, most: MOST[this.header.numbers] ?? 0, q: null, k: null, v: null,
        lengths: null, reach: null, scale: 1, softcap: null, sink: null, mask: facts.mask, bias: null, biases: null,
        bits: facts.mask.n_maps ? part(layer.mask, facts.mask.n_maps, headIndex) : null,
      };
    }
    const maps = facts.mask.n_maps;
    return {
      nQueries,
      nKeys,
      width: facts.d_k,
      valueWidth: facts.d_v,
      q: rows(layer, "q", headIndex, nQueries, facts.d_k),
      k: rows(layer, "k", kv, nKeys, facts.d_k),
      v: layer.v ? rows(layer, "v", kv, nKeys, facts.d_v) : null,
      lengths: layer.v_lengths ? layer.v_lengths.subarray(kv * nKeys, (kv + 1) * nKeys) : null,
      reach: layer.reach ? layer.reach.subarray(headIndex * nKeys, (headIndex + 1) * nKeys) : null,
      scale: facts.scale,
      softcap: facts.softcap,
      sink: facts.sinks ? facts.sinks[headIndex] : null,
      mask: facts.mask,
      bits: maps ? part(layer.mask, maps, headIndex) : null,
      bias: facts.bias,
      biases: facts.bias ? part(layer.bias, facts.bias.n, headIndex) : null,
    };
  }

  layer(layerIndex) {
    let layer = this.layers.get(layerIndex);
    if (!layer) {
      layer = {};
      for (const [name, block] of Object.entries(this.header.layers[layerIndex].blocks)) {
        layer[name] = this.block(name, block);
      }
      this.layers.set(layerIndex, layer);
    }
    return layer;
  }

  block(name, block) {
    if (name === "mask" || name === "bias") {
      if (!this.shared.has(block)) {
        this.shared.set(block, this.decode(name, block));
      }
      return this.shared.get(block);
    }
    return this.decode(name, block);
  }

  decode(name, block) {
    const bytes = decodeBlock(block);
    if (name === "mask") {
      return bytes;
    }
    const stored = this.header.numbers;
    const isVector = name === "q" || name === "k" || name === "v" || name === "given";
    const kind = isVector || stored === "float64" ? stored : "float32";
    return new KINDS[kind](bytes.buffer, bytes.byteOffset, bytes.byteLength / KINDS[kind].BYTES_PER_ELEMENT);
  }
}

/** One head's rows; 16-bit numbers are multiplied by the step of their row. */
function rows(layer, name, head, nRows, width) {
  const numbers = layer[name].subarray(head * nRows * width, (head + 1) * nRows * width);
  const steps = layer[`${name}_steps`];
  if (!steps) {
    return numbers;
  }
  const whole = new Float64Array(numbers.length);
  for (let row = 0; row < nRows; row++) {
    const step = steps[head * nRows + row];
    for (let e = row * width; e < (row + 1) * width; e++) {
      whole[e] = numbers[e] * step;
    }
  }
  return whole;
}

/** The share of an array that belongs to one head, or all of it where heads share it. */
function part(values, n, head) {
  const size = values.length / n;
  const place = n === 1 ? 0 : head;
  return values.subarray(place * size, (place + 1) * size);
}
