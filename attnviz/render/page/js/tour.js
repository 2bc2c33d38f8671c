// A guided walk with this sentence's numbers: q·k, ÷ √d_k, softmax, Σ weight·v, one step a screen.

import { brief, byId, el, exact, percent, placedToken } from "./dom.js";
import { entering, isVisible } from "./maths.js";
import { scaleWords } from "./inspector.js";
import { attended, blended, headName, page, state } from "./state.js";

const MOST_BARS = 12;

let place = 0;
let bars = [];

/** Connect the dialog and its buttons. */
export function setUpTour() {
  const dialog = byId("tour");
  byId("walk").addEventListener("click", () => {
    place = 0;
    bars = makeBars();
    byId("tour-picture").replaceChildren(el("ol", { class: "bars" }, ...bars.map(({ row }) => row)));
    dialog.showModal();
    draw();
  });
  byId("tour-before").addEventListener("click", () => move(-1));
  byId("tour-after").addEventListener("click", () => move(1));
  byId("tour-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) {
      move(step);
    }
  });
}

function move(step) {
  place = Math.max(0, Math.min(STEPS.length - 1, place + step));
  draw();
}

/** The keys that get a bar: the strongest of the row, in the order of the text. */
function makeBars() {
  const { head, scores, weights } = attended();
  const at = state.query * head.nKeys;
  const keys = [...Array(head.nKeys).keys()].sort((a, b) => weights[at + b] - weights[at + a] || a - b)
    .slice(0, MOST_BARS).sort((a, b) => a - b);
  const { share } = blended(state.query);
  return keys.map((key) => {
    const bar = el("i", {});
    const number = el("b", {});
    const row = el("li", {}, placedToken(page.keys[key], "is-key"), el("span", { class: "track" }, bar), number);
    const seen = isVisible(head, state.query, key);
    return {
      row, bar, number,
      values: [
        scores[at + key], scores[at + key] * head.scale,
        seen ? Math.exp(entering(head, scores[at + key], state.query, key) - top(head, scores, at)) : 0,
        weights[at + key], share[key],
      ],
    };
  });
}

function top(head, scores, at) {
  let most = -Infinity;
  for (let j = 0; j < head.nKeys; j++) {
    if (isVisible(head, state.query, j)) {
      most = Math.max(most, entering(head, scores[at + j], state.query, j));
    }
  }
  return most;
}

const STEPS = [
  { title: "1 · Compare: q·k", say: ({ head, query }) => ["The query of ", query, ` meets every key in a dot product of ${head.width} terms. A large score: the two vectors point the same way.`], number: brief },
  { title: "2 · Scale: ÷ √d_k", say: ({ head }) => [`Every score is scaled, ${scaleWords(head)}: sums of many terms are large, and a softmax of large numbers looks at one key only.`], number: brief },
  { title: "3 · Softmax, first half: e to the score", say: () => ["Each score becomes e^score (here beside the row's largest, which is 1). All become positive; a difference of 1 becomes a factor of 2.72. Masked keys become 0."], number: (x) => brief(x, 4) },
  { title: "4 · Softmax, second half: weights", say: ({ query }) => ["Divided by their sum, they are shares: this is where ", query, " looks."], number: (x) => percent(x) },
  { title: "5 · Blend: z = Σ weight · v", say: ({ query }) => ["The output for ", query, " is the sum of the values, each times its weight. The bars show what each brings: ‖weight·v‖, as a share of all."], number: (x) => percent(x) },
];

function draw() {
  const { head } = attended();
  const step = STEPS[place];
  byId("tour-title").textContent = step.title;
  byId("tour-words").replaceChildren(...step.say({ head, query: placedToken(page.queries[state.query], "is-query") }));
  byId("tour-place").textContent = `${headName()}, step ${place + 1} of ${STEPS.length}`;
  byId("tour-before").disabled = place === 0;
  byId("tour-after").disabled = place === STEPS.length - 1;
  const most = bars.reduce((a, { values }) => Math.max(a, Math.abs(values[place])), 0) || 1;
  for (const { bar, number, values } of bars) {
    const value = values[place];
    bar.style.width = `${(100 * Math.abs(value)) / most}%`;
    bar.classList.toggle("is-below", value < 0);
    number.textContent = step.number(value);
    number.title = exact(value);
  }
}
