// Choosing: layer, head, view, stage, colours, light or dark; and the address that remembers it.

import { css, rampColor, tickShares, weightPlace } from "./colors.js";
import { brief, byId, el } from "./dom.js";
import { hides, scaleOf, stageNames } from "./stages.js";
import { attended, choose, headName, page, state, whatIf } from "./state.js";

const VIEWS = ["heatmap", "links", "grid", "pair"];
const MANY_KEYS = 64; // as the command line's pictures and heatmaps
const WEIGHTS_OF_ALL = { ramp: "weights", low: 0, high: 1, place: (share) => weightPlace(share, 1) };

/** Fill the choices and connect them. */
export function setUpControls() {
  settle();
  setUpSelect("layer", page.header.layers.map((layer) => `${layer.layer}`));
  setUpSelect("head", page.header.heads.map((head) => `${head}`));
  setUpTabs();
  byId("stage").append(...stageNames().filter(({ can }) => can).map(({ id, name }) => el("option", { value: id }, name)));
  byId("stage").addEventListener("change", (event) => choose({ stage: event.target.value }));
  byId("other").append(...page.header.heads.map((head, index) => el("option", { value: index }, `H${head}`)));
  byId("other").addEventListener("change", (event) => choose({ other: Number(event.target.value) }));
  byId("no-sinks").addEventListener("change", (event) => choose({ sinks: !event.target.checked }));
  setUpKeys();
  byId("scaling").addEventListener("change", (event) => choose({ scaling: event.target.value }));
  setUpTheme();
}

function setUpSelect(name, labels) {
  const select = byId(name);
  select.append(...labels.map((label, index) => el("option", { value: index }, label)));
  select.addEventListener("change", () => choose({ [name]: Number(select.value), hover: null }));
  for (const [id, step] of [[`${name}-before`, -1], [`${name}-after`, 1]]) {
    byId(id).addEventListener("click", () => {
      const next = Math.max(0, Math.min(labels.length - 1, state[name] + step));
      choose({ [name]: next, hover: null });
    });
  }
  byId(`${name}-field`).hidden = labels.length === 1;
}

/** [ and ] step through heads, { and } through layers, / goes to the search, ? to the explanation. */
function setUpKeys() {
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || byId("tour").open) {
      return;
    }
    const button = { "[": "head-before", "]": "head-after", "{": "layer-before", "}": "layer-after" }[event.key];
    if (button) {
      byId(button).click();
    } else if (event.key === "/") {
      event.preventDefault();
      byId("find").focus();
    } else if (event.key === "?") {
      byId("howto").open = true;
      byId("howto").querySelector("summary").focus();
    }
  });
  window.addEventListener("hashchange", () => choose({ ...recall(), hover: null }));
}

function setUpTabs() {
  const tabs = VIEWS.map((view) => byId(`tab-${view}`));
  tabs.forEach((tab, n) => {
    tab.addEventListener("click", () => choose({ view: VIEWS[n], hover: null }));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const next = (n + step + VIEWS.length) % VIEWS.length;
        choose({ view: VIEWS[next], hover: null });
        tabs[next].focus();
      }
    });
  });
}

let isThemeChosen = false; // by the reader, not by the system

function setUpTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  state.theme = dark.matches ? "dark" : "light";
  dark.addEventListener("change", () => choose({ theme: dark.matches ? "dark" : "light" }));
  byId("theme").addEventListener("click", () => {
    isThemeChosen = true;
    choose({ theme: state.theme === "dark" ? "light" : "dark" });
  });
  let before = null; // paper is white: print in light colours, then go back
  window.addEventListener("beforeprint", () => {
    before = state.theme;
    choose({ theme: "light" });
  });
  window.addEventListener("afterprint", () => choose({ theme: before ?? state.theme }));
}

/** Show what is chosen in every control. */
export function drawControls(changed = null) {
  document.documentElement.dataset.theme = state.theme;
  byId("theme").textContent = state.theme === "dark" ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `switch to ${state.theme === "dark" ? "light" : "dark"} colours`);
  const counts = { layer: page.header.layers.length, head: page.header.heads.length };
  for (const name of ["layer", "head"]) {
    byId(name).value = String(state[name]);
    byId(`${name}-before`).disabled = state[name] === 0;
    byId(`${name}-after`).disabled = state[name] === counts[name] - 1;
  }
  for (const view of VIEWS) {
    const isChosen = view === state.view;
    const tab = byId(`tab-${view}`);
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    byId(`panel-${view}`).hidden = !isChosen;
  }
  byId("stage").value = state.stage;
  byId("stage-field").hidden = state.view !== "heatmap";
  byId("stage").querySelector('[value="change"]').hidden = whatIf() === null && state.stage !== "change";
  byId("other").hidden = state.stage !== "versus";
  byId("other").value = String(state.other);
  byId("no-sinks").checked = !state.sinks;
  byId("zoom-field").hidden = state.view !== "heatmap" || Math.max(page.queries.length, page.keys.length) <= 12;
  byId("scaling").value = state.scaling;
  byId("scaling-field").hidden = state.view === "heatmap" && scaleOf(state.stage, attended()).low !== 0;
  byId("legend").hidden = state.view === "links";
  drawColorBar();
  if (changed === null || [...changed].some((name) => name !== "hover")) {
    remember();
  }
}

function drawColorBar() {
  if (state.view === "links") {
    return;
  }
  const isOfAll = state.view !== "heatmap";
  const scale = isOfAll ? WEIGHTS_OF_ALL : scaleOf(state.stage, attended());
  // the bar shows the ramp as it is; where values stand on it is said by its ticks
  const stops = Array.from({ length: 11 }, (_, n) => css(rampColor(scale.ramp, n / 10)));
  byId("ramp").style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  byId("ramp-low").textContent = scale.low === 0 ? "0" : brief(scale.low, 1);
  byId("ramp-high").textContent = isOfAll && state.scaling === "largest" ? "each head's largest" : scale.high === 1 ? "1" : brief(scale.high, scale.low === 0 ? 3 : 1);
  const shares = scale.low === 0 ? tickShares() : [0.5];
  byId("ticks").replaceChildren(...shares.map((share) => {
    const tick = el("i", { title: brief(share * scale.high, 4) });
    tick.style.left = `${100 * (scale.low === 0 ? scale.place(share * scale.high) : share)}%`;
    const isEnd = share === 0 || share === 1;
    tick.append(isEnd || scale.low !== 0 || (isOfAll && state.scaling === "largest") ? "" : shortNumber(share * scale.high));
    return tick;
  }));
  byId("hidden-key").hidden = isOfAll || !hides(state.stage) || !(hidesAny() || !state.sinks);
  byId("hidden-word").textContent = state.sinks ? "masked" : hidesAny() ? "masked or left out" : "left out";
}

function shortNumber(value) {
  return value >= 0.01 ? String(Number(value.toPrecision(2))) : value.toExponential(0).replace("e-", "e−");
}

function hidesAny() {
  const { mask } = page.header.layers[state.layer];
  return mask.causal || mask.before !== null || mask.chunk !== null || mask.n_maps > 0 || whatIf() !== null;
}

/** What the address holds besides the cell, where it is other than when the page opens. */
const KEPT = {
  stage: String, scaling: String, theme: String, side: String, hidden: String,
  other: Number, temperature: Number, window: Number,
  causal: (text) => text === "true", sinks: (text) => text === "true",
};
const PLAIN = {};

/** How a page opens: the weights of a long text by their logarithm, or they would all look like 0. */
function settle() {
  if (page.keys.length > MANY_KEYS) {
    state.scaling = "log";
  }
  Object.assign(PLAIN, Object.fromEntries(Object.keys(KEPT).map((name) => [name, state[name]])));
}

/** Keep the choice in the address, so that a link opens where it was copied. */
function remember() {
  const more = Object.keys(KEPT).filter((name) => state[name] !== PLAIN[name] && !(name === "theme" && !isThemeChosen))
    .map((name) => `;${name}=${state[name]}`);
  try {
    history.replaceState(null, "", `#${headName()}.q${state.query}.k${state.key}.${state.view}${more.join("")}`);
  } catch {
    // a sandboxed frame has no address of its own
  }
}

/** Read the address back; what it names and the page does not have is ignored. */
export function recall() {
  const [, cell = "", more = ""] = /^([^;]*);?(.*)$/.exec(decodeURI(window.location.hash));
  const found = /^#L(\d+)\.H(\d+)\.q(\d+)\.k(\d+)\.(\w+)$/.exec(cell);
  if (!found) {
    return {};
  }
  const [layer, head, query, key] = found.slice(1, 5).map(Number);
  const wanted = {
    layer: page.header.layers.findIndex((each) => each.layer === layer),
    head: page.header.heads.indexOf(head),
    query: query < page.queries.length ? query : -1,
    key: key < page.keys.length ? key : -1,
    view: VIEWS.includes(found[5]) ? found[5] : -1,
  };
  const known = Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== -1));
  return { ...known, ...PLAIN, theme: state.theme, ...recallMore(more) };
}

function recallMore(text) {
  const allowed = {
    stage: (value) => stageNames().some(({ id, can }) => can && id === value),
    scaling: (value) => ["fixed", "largest", "root", "log"].includes(value),
    theme: (value) => ["light", "dark"].includes(value),
    side: (value) => ["looks", "seen"].includes(value),
    hidden: (value) => value.split(",").every((key) => /^\d+$/.test(key) && Number(key) < page.keys.length),
    other: (value) => Number.isInteger(value) && value >= 0 && value < page.header.heads.length,
    temperature: (value) => value >= 0.01 && value <= 100,
    window: (value) => Number.isInteger(value) && value >= 0,
  };
  const found = {};
  for (const part of text.split(";")) {
    const [name, value = ""] = part.split("=");
    if (Object.hasOwn(KEPT, name)) {
      const read = KEPT[name](value);
      if (!allowed[name] || allowed[name](read)) {
        found[name] = read;
      }
    }
  }
  isThemeChosen ||= "theme" in found;
  return found;
}
