// Elements are made only of attributes and text nodes, so the contents of a document never become markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);
export const h = (name, attributes, ...children) => filled(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Writes only what changed: a page that rewrites itself every second loses selections, and wastes the browser's time. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

export function attribute(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function shownIf(element, condition) {
  if (element.hidden === condition) element.hidden = !condition;
}

/** One child for each item, kept by its key, so that focus and scrolling stay where they are. make: item -> [element, update]. */
export function keyed(parent, items, keyOf, make) {
  const kept = (parent.kept ??= new Map());
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    wanted.add(key);
    let entry = kept.get(key);
    if (!entry) kept.set(key, (entry = make(item)));
    const [element, update] = entry;
    update(item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const [key, [element]] of kept) {
    if (wanted.has(key)) continue;
    element.remove();
    kept.delete(key);
  }
}

// Text

const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const numbers = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const times = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const moments = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** A name in visible characters: control characters, and those that change the direction of writing, would hide what it is. */
export const named = (name) => (name === "" ? "(empty)" : name.replace(CONTROLS, "\ufffd"));
export const bdi = (name) => h("bdi", { class: "name", title: named(name) }, named(name));
export const count = (value) => (value == null ? "–" : numbers.format(value));
export const brief = (value) => (value == null ? "–" : value < 10000 ? numbers.format(value) : compact.format(value));
export const plural = (value, one, many = `${one}s`) => `${numbers.format(value)} ${value === 1 ? one : many}`;
export const time = (date) => times.format(date);
export const moment = (date) => (Number.isNaN(date.getTime()) ? "–" : moments.format(date));

export function rate(value) {
  if (value == null) return "–";
  return value > 0 && value < 10 ? value.toFixed(1) : brief(Math.round(value));
}

export function seconds(value) {
  if (value < 0.001) return "<1 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 60 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

/** For people: 2.8 s, 14 min, 3.2 h. */
export function age(value) {
  if (value == null) return "–";
  if (value < 120) return `${value.toFixed(1)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${numbers.format(Math.round(value / 360) / 10)} h`;
}

export function ago(value) {
  if (value < 1.5) return "now";
  return value < 90 ? `${Math.round(value)} s ago` : `${Math.round(value / 60)} min ago`;
}
