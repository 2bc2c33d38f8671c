// The text itself: every token a button; shaded by how much the shown query looks at it, or how much it looks at the shown key.

import { css, inkOn, rampColor, weightPlace } from "./colors.js";
import { byId, el, percent, tokenText } from "./dom.js";
import { attended, choose, page, shownCell, sideWeights, state, strongestKey, whatIf } from "./state.js";

let buttons = [];
let shaded = "";
let inSight = -1;

/** Make one button per token; arrow keys walk along them. */
export function setUpStrip() {
  const strip = byId("strip");
  buttons = page.queries.map((token) => {
    const button = el("button", { type: "button", class: "chip", tabindex: "-1" });
    button.append(tokenText(token));
    button.dataset.label = token.label;
    button.classList.toggle("is-special", token.isSpecial);
    button.addEventListener("click", () => choose({ query: token.index, key: strongestKey(token.index), hover: null }));
    button.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse" && page.sameTokens) {
        choose({ hover: { query: state.query, key: token.index } });
      }
    });
    return button;
  });
  strip.append(...buttons);
  setUpSearch();
  strip.addEventListener("pointerleave", () => choose({ hover: null }));
  strip.addEventListener("keydown", (event) => {
    const last = buttons.length - 1;
    const next = { ArrowRight: state.query + 1, ArrowLeft: state.query - 1, Home: 0, End: last }[event.key];
    if (next !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      const query = Math.max(0, Math.min(last, next));
      choose({ query, key: strongestKey(query), hover: null });
      buttons[query].focus();
    }
  });
}

/** Find tokens by what they hold; Enter goes to the next one. */
function setUpSearch() {
  const box = byId("find");
  const found = () => (box.value ? page.queries.filter((token) => token.shown.toLowerCase().includes(box.value.toLowerCase())) : []);
  box.addEventListener("input", () => {
    const hits = found();
    const marked = new Set(hits.map((token) => token.index));
    buttons.forEach((button, index) => button.classList.toggle("is-found", marked.has(index)));
    byId("find-note").textContent = box.value ? `${hits.length} ${hits.length === 1 ? "token" : "tokens"}${hits.length ? ", Enter goes through them" : ""}` : "";
  });
  box.addEventListener("keydown", (event) => {
    const hits = found();
    if (event.key === "Enter" && hits.length) {
      event.preventDefault();
      const next = hits.find((token) => token.index > state.query) ?? hits[0];
      choose({ query: next.index, key: strongestKey(next.index), hover: null });
    } else if (event.key === "Escape") {
      box.value = "";
      box.dispatchEvent(new Event("input"));
      buttons[state.query].focus();
    }
  });
}

/** Shade the tokens by the weights of the shown query, and mark it. */
export function drawStrip() {
  const { query, key } = shownCell();
  const isSeen = state.side === "seen";
  const name = [state.layer, state.head, isSeen ? key : query, query, state.side, state.theme, state.scaling,
    JSON.stringify(whatIf()), state.sinks].join();
  if (name !== shaded) {
    shaded = name;
    const row = sideWeights(query, key);
    const top = state.scaling === "largest" ? row.reduce((a, b) => Math.max(a, b), 0) || 1 : 1;
    buttons.forEach((button, index) => {
      const isQuery = index === query;
      const color = rampColor("weights", page.sameTokens ? weightPlace(row[index], top) : 0);
      button.style.backgroundColor = css(color);
      button.style.color = inkOn(color);
      button.classList.toggle("is-query", isQuery);
      button.setAttribute("aria-label", page.sameTokens
        ? `token ${index} ${page.queries[index].shown}, ${isSeen ? "looks at the key with" : "weight"} ${percent(row[index], 1)}`
        : `token ${index} ${page.queries[index].shown}`);
      button.setAttribute("aria-pressed", String(index === state.query));
      button.tabIndex = index === state.query ? 0 : -1;
    });
  }
  if (state.query !== inSight) {
    inSight = state.query;
    bringIntoSight(buttons[state.query]);
  }
  buttons.forEach((button, index) => button.classList.toggle("is-key", page.sameTokens && index === key));
}

/** Scroll the strip, and nothing else, until a token of a long text is in sight. */
function bringIntoSight(button) {
  const strip = byId("strip");
  const top = button.offsetTop - strip.offsetTop;
  if (top < strip.scrollTop || top + button.offsetHeight > strip.scrollTop + strip.clientHeight) {
    strip.scrollTop = top - strip.clientHeight / 2 + button.offsetHeight / 2;
  }
}
