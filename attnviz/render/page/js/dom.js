// Small helpers: elements, numbers as text, canvases that stay sharp.

/** Make an element. Strings become text, never markup. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children);
  return element;
}

/** Shorthand for an element of the template. */
export function byId(id) {
  return document.getElementById(id);
}

/** A token as an isolated run of text. */
export function tokenText(token, className = "token") {
  const isolated = el("bdi", { class: className });
  isolated.textContent = token.shown;
  return isolated;
}

/** A token with its place, `7:bear`. */
export function placedToken(token, className = "") {
  const named = el("span", { class: `placed ${className}` }, `${token.index}:`);
  named.append(tokenText(token, "token"));
  return named;
}

/** A number with six digits behind the point, a true minus sign, and powers where it is huge. */
export function exact(value) {
  return signed(plain(value));
}

function plain(value) {
  if (!Number.isFinite(value)) {
    return Number.isNaN(value) ? "not a number" : value > 0 ? "∞" : "-∞";
  }
  return Math.abs(value) >= 1e7 ? value.toExponential(9) : value.toFixed(6);
}

/** A number in few digits, for cells and captions. */
export function brief(value, digits = 2) {
  return signed(Math.abs(value) >= 1e5 ? value.toExponential(1) : value.toFixed(digits));
}

/** A share as per cent. */
export function percent(share, digits = 2) {
  return signed(`${(100 * share).toFixed(digits)} %`);
}

function signed(text) {
  return text.replace("-", "−");
}

/** Fit a canvas to a size in CSS pixels; returns its context, scaled so that 1 is one CSS pixel. */
export function sizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.max(1, Math.round(width * ratio));
  const high = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(wide / width, 0, 0, high / height, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Cut a label to a width, marking the cut. */
export function fitLabel(context, text, width) {
  if (context.measureText(text).width <= width) {
    return text;
  }
  const letters = [...text];
  let low = 0;
  let high = Math.min(letters.length, 200);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    const cut = `${letters.slice(0, middle).join("")}…`;
    if (context.measureText(cut).width <= width) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return `${letters.slice(0, low).join("")}…`;
}

const waiting = new Map();

/** Draw before the next frame, once, however often it is asked for. */
export function soon(name, draw) {
  const isIdle = waiting.size === 0;
  waiting.set(name, draw);
  if (isIdle) {
    requestAnimationFrame(() => {
      const all = [...waiting.values()];
      waiting.clear();
      for (const each of all) {
        each();
      }
    });
  }
}

/** The font of canvas text. */
export function canvasFont(size, weight = 400) {
  return `${weight} ${size}px system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif`;
}
