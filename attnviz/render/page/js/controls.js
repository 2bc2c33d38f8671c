// Choosing: layer, head, view, stage, colours, light or dark; and the address that remembers it.

import { css, rampColor, weightPlace } from "./colors.js";
import { brief, byId, el } from "./dom.js";
import { scaleOf } from "./stages.js";
import { attended, choose, headName, page, state } from "./state.js";

const VIEWS = ["heatmap", "links", "grid"];

/** Fill the choices and connect them. */
export function setUpControls() {
  setUpSelect("layer", page.header.layers.map((layer) => `${layer.layer}`));
  setUpSelect("head", page.header.heads.map((head) => `${head}`));
  setUpTabs();
  byId("stage").addEventListener("change", (event) => choose({ stage: event.target.value }));
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

function setUpTheme() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  state.theme = dark.matches ? "dark" : "light";
  dark.addEventListener("change", () => choose({ theme: dark.matches ? "dark" : "light" }));
  byId("theme").addEventListener("click", () => choose({ theme: state.theme === "dark" ? "light" : "dark" }));
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
  byId("zoom-field").hidden = state.view !== "heatmap" || Math.max(page.queries.length, page.keys.length) <= 12;
  byId("scaling").value = state.scaling;
  byId("scaling-field").hidden = state.view === "heatmap" && state.stage !== "weights";
  byId("legend").hidden = state.view === "links";
  drawColorBar();
  if (changed === null || ["layer", "head", "query", "key", "view"].some((name) => changed.has(name))) {
    remember();
  }
}

function drawColorBar() {
  if (state.view === "links") {
    return;
  }
  const isGrid = state.view === "grid";
  const scale = isGrid ? { ramp: "weights", low: 0, high: 1, place: (share) => weightPlace(share, 1) } : scaleOf(state.stage, attended());
  const stops = Array.from({ length: 11 }, (_, n) => css(rampColor(scale.ramp, scale.place(scale.low + (n / 10) * (scale.high - scale.low)))));
  byId("ramp").style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  byId("ramp-low").textContent = scale.low === 0 ? "0" : brief(scale.low, 1);
  byId("ramp-high").textContent = isGrid && state.scaling === "largest" ? "each head's largest" : scale.high === 1 ? "1" : brief(scale.high, scale.low === 0 ? 3 : 1);
  byId("hidden-key").hidden = isGrid || (state.stage !== "weights" && state.stage !== "masked") || !hidesAny();
}

function hidesAny() {
  const { mask } = page.header.layers[state.layer];
  return mask.causal || mask.before !== null || mask.chunk !== null || mask.n_maps > 0;
}

/** Keep the choice in the address, so that a link opens where it was copied. */
function remember() {
  try {
    history.replaceState(null, "", `#${headName()}.q${state.query}.k${state.key}.${state.view}`);
  } catch {
    // a sandboxed frame has no address of its own
  }
}

/** Read the address back; what it names and the page does not have is ignored. */
export function recall() {
  const found = /^#L(\d+)\.H(\d+)\.q(\d+)\.k(\d+)\.(\w+)$/.exec(window.location.hash);
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
  return Object.fromEntries(Object.entries(wanted).filter(([, value]) => value !== -1));
}
