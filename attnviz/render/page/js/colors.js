// Colours: a share becomes a shade of paper to ink; a score is blue below 0 and orange above.
// Lightness changes steadily along every ramp, so that it reads without hue.

import { state } from "./state.js";

const LOG_FLOOR = 1e-4; // where a logarithmic ramp begins; all below has the colour of 0

const RAMPS = {
  light: {
    weights: [[250, 250, 247], [214, 230, 232], [150, 193, 205], [77, 140, 168], [28, 87, 122], [8, 38, 68]],
    scores: [[20, 66, 122], [84, 141, 190], [182, 208, 226], [250, 250, 247], [240, 205, 176], [207, 128, 70], [132, 62, 16]],
  },
  dark: {
    weights: [[24, 28, 34], [31, 56, 78], [45, 95, 120], [96, 142, 138], [178, 188, 120], [253, 232, 110]],
    scores: [[140, 205, 250], [66, 132, 182], [35, 66, 94], [24, 28, 34], [92, 58, 32], [184, 112, 54], [252, 186, 120]],
  },
};

const INKS = {
  light: {
    hidden: [229, 225, 217], hatch: [208, 202, 191], ink: "#22262b", muted: "#676d75", line: "#dedcd4",
    surface: "#ffffff", query: "#a8480c", key: "#1a5fa0", mark: "#111418",
  },
  dark: {
    hidden: [47, 44, 41], hatch: [66, 61, 56], ink: "#e8e6e1", muted: "#98a0aa", line: "#313841",
    surface: "#181c22", query: "#f2a35e", key: "#7cb8ee", mark: "#ffffff",
  },
};

/** The palette of the current theme. */
export function inks() {
  return INKS[state.theme];
}

/** The colour of a place between 0 and 1 on a ramp. */
export function rampColor(name, share) {
  const anchors = RAMPS[state.theme][name];
  const place = Math.max(0, Math.min(1, share)) * (anchors.length - 1);
  const low = Math.min(Math.floor(place), anchors.length - 2);
  const rest = place - low;
  return anchors[low].map((from, i) => Math.round(from + (anchors[low + 1][i] - from) * rest));
}

/** A weight's place on its ramp: as it is, against the largest, by its square root or its logarithm. */
export function weightPlace(weight, top) {
  const share = weight / top;
  if (state.scaling === "log") {
    return share > LOG_FLOOR ? 1 - Math.log(share) / Math.log(LOG_FLOOR) : 0;
  }
  return state.scaling === "root" ? Math.sqrt(share) : share;
}

/** Where the colour bar has its ticks: the shares that stand at these places of the ramp. */
export function tickShares() {
  return { log: [1e-4, 1e-3, 1e-2, 0.1, 1], root: [0, 0.04, 0.16, 0.36, 0.64, 1] }[state.scaling] ?? [0, 0.25, 0.5, 0.75, 1];
}

/** A ramp of 256 colours, for pictures. */
export function rampTable(name) {
  const table = new Uint8ClampedArray(256 * 3);
  for (let n = 0; n < 256; n++) {
    table.set(rampColor(name, n / 255), n * 3);
  }
  return table;
}

/** Black or white, whichever stands out more on a colour (WCAG 2 relative luminance). */
export function inkOn([red, green, blue]) {
  const linear = [red, green, blue].map((c) => {
    const part = c / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return luminance > 0.179 ? "#101316" : "#ffffff";
}

export function css([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}
