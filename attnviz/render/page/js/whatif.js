// The controls of "What if": temperature, causal, window, a masked key; and what they are on the command line.

import { byId, placedToken } from "./dom.js";
import { choose, page, shownCell, state, whatIf } from "./state.js";

const AS_IT_WAS = { temperature: 1, causal: false, window: 0, hidden: "" };

/** Connect the controls. */
export function setUpWhatIf() {
  byId("temperature").addEventListener("input", (event) => {
    choose({ temperature: Number((10 ** Number(event.target.value)).toPrecision(3)), hover: null });
  });
  byId("causal").addEventListener("change", (event) => choose({ causal: event.target.checked, hover: null }));
  byId("window").addEventListener("change", (event) => {
    const window = Math.max(0, Math.min(page.keys.length, Math.round(Number(event.target.value) || 0)));
    choose({ window, hover: null });
  });
  byId("hide-key").addEventListener("click", () => {
    const hidden = new Set(state.hidden ? state.hidden.split(",").map(Number) : []);
    hidden.delete(state.key) || hidden.add(state.key);
    choose({ hidden: [...hidden].sort((a, b) => a - b).join(), hover: null });
  });
  byId("whatif-reset").addEventListener("click", () => choose({ ...AS_IT_WAS, stage: state.stage === "change" ? "weights" : state.stage }));
}

/** Show what is changed. */
export function drawWhatIf() {
  const change = whatIf();
  byId("temperature").value = String(Math.log10(state.temperature));
  byId("temperature-now").textContent = String(state.temperature);
  byId("causal").checked = state.causal;
  byId("window").value = String(state.window);
  const isHidden = state.hidden.split(",").includes(String(state.key));
  byId("hide-key").replaceChildren(placedToken(page.keys[shownCell().key], "is-key"), isHidden ? " (masked: show it again)" : "");
  byId("hide-key").setAttribute("aria-pressed", String(isHidden));
  byId("whatif-reset").disabled = change === null;
  byId("whatif-now").textContent = change === null ? "" : inWords(change);
}

function inWords({ temperature, causal, window, hidden }) {
  const { scale } = page.header.layers[state.layer];
  const parts = [
    ...(temperature === 1 ? [] : [`temperature ${temperature} (--scale ${Number((scale / temperature).toPrecision(12))})`]),
    ...(causal ? ["causal (--causal)"] : []),
    ...(window ? [`window of ${window} (--window ${window})`] : []),
    ...(hidden.length ? [`${hidden.length === 1 ? "key" : "keys"} ${hidden.join(", ")} masked`] : []),
  ];
  return `· changed: ${parts.join(", ")}`;
}
