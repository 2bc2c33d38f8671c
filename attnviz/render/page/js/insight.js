// Why the page opens where it does: the chosen link, and other heads worth a look.

import { byId, el, percent, placedToken } from "./dom.js";
import { choose, headName, page, state } from "./state.js";

/** Make a button for every link that the program found. */
export function setUpInsight() {
  const { links = [] } = page.header.start;
  byId("insight").hidden = links.length === 0;
  byId("insight-others").replaceChildren(...links.map((link) => {
    const button = el("button", { type: "button", class: "link-to" }, `${headName(link.layer, link.head)}: `,
      placedToken(page.queries[link.query], "is-query"), " → ", placedToken(page.keys[link.key], "is-key"), ` ${percent(link.weight, 0)}`);
    button.addEventListener("click", () => choose({ layer: link.layer, head: link.head, query: link.query, key: link.key, hover: null }));
    return button;
  }));
  byId("insight-reason").textContent = "Links that a head makes here and not by habit:";
}

/** Mark the button of the shown cell. */
export function drawInsight() {
  const { links = [] } = page.header.start;
  [...byId("insight-others").children].forEach((button, n) => {
    const isShown = ["layer", "head", "query", "key"].every((name) => links[n][name] === state[name]);
    button.setAttribute("aria-pressed", String(isShown));
  });
}
