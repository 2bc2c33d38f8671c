// Open the page: read the data, connect the views, draw; then redraw what a change touches.

import { drawControls, recall, setUpControls } from "./controls.js";
import { byId, placedToken, percent, soon } from "./dom.js";
import { drawGrid, setUpGrid } from "./grid.js";
import { drawHeatmap, followChoice, setUpHeatmap } from "./heatmap.js";
import { drawAbout, drawHowTo } from "./howto.js";
import { drawInspector, setUpInspector } from "./inspector.js";
import { drawLinks, scrollTo, setUpLinks } from "./links.js";
import { drawNeuron, setUpNeuron } from "./neuron.js";
import { drawInsight, setUpInsight } from "./insight.js";
import { drawPair, setUpPair } from "./pair.js";
import { attended, headName, onChange, openPage, page, shownCell, state, strongestKey } from "./state.js";
import { drawStrip, setUpStrip } from "./strip.js";
import { drawTake, setUpTake } from "./take.js";
import { setUpTour } from "./tour.js";
import { drawWhatIf, setUpWhatIf } from "./whatif.js";

/** Say in one sentence where the shown query looks most. */
function drawSentence() {
  const { query } = shownCell();
  const { weights, head } = attended();
  const best = strongestKey(query);
  const weight = weights[query * head.nKeys + best];
  const isSelf = page.sameTokens && best === query;
  byId("sentence").replaceChildren(
    ...(weight > 0
      ? [placedToken(page.queries[query], "is-query"), " looks most at ",
          isSelf ? "itself" : placedToken(page.keys[best], "is-key"), `, ${percent(weight, 1)}`]
      : [placedToken(page.queries[query], "is-query"), " may look at no key"]),
  );
}

function drawViews() {
  soon("heatmap", drawHeatmap);
  soon("links", drawLinks);
  soon("grid", drawGrid);
  soon("pair", drawPair);
  soon("neuron", drawNeuron);
}

function drawAll(changed = null) {
  drawControls(changed);
  drawSentence();
  drawStrip();
  drawInspector();
  drawHowTo();
  drawWhatIf();
  drawTake();
  drawInsight();
  drawViews();
}

function nameTheSource() {
  const { source } = page.header;
  byId("source").textContent = `${source.kind}: ${source.name}`;
  document.title = `${page.queries.slice(0, 12).map((token) => token.shown).join(" ")} · attnviz`;
  const size = `${page.header.layers.length} × ${page.header.heads.length}`;
  byId("tab-grid").title = `all layers × heads: ${size}`;
}

function start() {
  openPage();
  setUpControls();
  setUpStrip();
  setUpInspector();
  setUpHeatmap();
  setUpLinks();
  setUpGrid();
  setUpNeuron();
  setUpPair();
  setUpWhatIf();
  setUpTake();
  setUpTour();
  setUpInsight();
  nameTheSource();
  drawAbout();
  const { layer = 0, head = 0, query, key } = page.header.start;
  const middle = Math.floor((page.queries.length - 1) / 2);
  Object.assign(state, { layer, head, query: query ?? middle }, recall());
  if (!window.location.hash.includes(".k")) {
    state.key = key ?? strongestKey(state.query);
  }
  onChange((changed) => {
    if (changed.has("query") || changed.has("key")) {
      followChoice();
      scrollTo(state.query);
    }
    byId("heatmap").dataset.name = headName();
    drawAll(changed);
  });
  byId("howto").addEventListener("toggle", drawHowTo);
  new ResizeObserver(drawViews).observe(byId("views"));
  drawAll();
  requestAnimationFrame(() => {
    document.documentElement.dataset.ready = Math.round(performance.now());
  });
}

start();
