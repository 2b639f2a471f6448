// A colour and a pattern for every host: six colours that colour-blind people tell apart (after Okabe and Ito), four patterns.

import { svg } from "./dom.js";

const COLOURS = {
  light: ["#0072b2", "#c77d00", "#00876a", "#b8568f", "#c4461a", "#6b6bd6"],
  dark: ["#4aa8e0", "#f0b132", "#2fc49a", "#e596c2", "#f2793d", "#a6a3ff"],
};
const HEAT = {
  light: ["#dbe7f3", "#b3cde6", "#7fadd6", "#4a88c0", "#1f5f9e", "#0b3566"],
  dark: ["#2b3947", "#24476a", "#2f6699", "#4489c6", "#76b3e8", "#c3e0fb"],
};
const PATTERNS = 4;
const dark = matchMedia("(prefers-color-scheme: dark)");

export const HEAT_FROM = [0, 1, 10, 100, 1000, 10000];
export const theme = () => (dark.matches ? "dark" : "light");
export const onTheme = (listener) => dark.addEventListener("change", listener);
export const heatOf = (lag) => HEAT[theme()][HEAT_FROM.findLastIndex((from) => lag >= from)];

const slots = new Map(); // host -> number, for as long as the page is open: a host keeps its colour while others come and go

/** Gives every host a slot, the lowest free one. */
export function seat(names) {
  const present = new Set(names);
  for (const name of names) {
    if (slots.has(name)) continue;
    const taken = new Set([...slots].filter(([each]) => present.has(each)).map(([, slot]) => slot));
    let free = 0;
    while (taken.has(free)) free += 1;
    for (const [other, slot] of slots) if (slot === free) slots.delete(other); // it has left, and its place is wanted
    slots.set(name, free);
  }
}

/** {colour, pattern} of a host; null: unknown. */
export function lookOf(name) {
  const slot = slots.get(name);
  if (slot === undefined) return null;
  const colours = COLOURS[theme()];
  return { colour: colours[slot % colours.length], pattern: Math.floor(slot / colours.length) % PATTERNS };
}

const TILE = 6;
const fills = new Map();

/** What a canvas fills a cell with: plain, stripes, dots or a lattice in the surface's colour over the host's. */
export function fillOf(context, look, surface, scale) {
  if (look.pattern === 0) return look.colour;
  const id = `${look.colour} ${look.pattern} ${surface} ${scale}`;
  if (!fills.has(id)) fills.set(id, context.createPattern(tileOf(look, surface, scale), "repeat"));
  return fills.get(id);
}

function tileOf({ colour, pattern }, surface, scale) {
  const tile = new OffscreenCanvas(TILE * scale, TILE * scale);
  const context = tile.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = colour;
  context.fillRect(0, 0, TILE, TILE);
  context.strokeStyle = context.fillStyle = surface;
  context.lineWidth = 1.4;
  context.stroke(new Path2D(STROKES[pattern]));
  return tile;
}

const STROKES = ["", "M-1 7L7 -1M-1 1L1 -1M5 7L7 5", "M2 3h2M3 2v2", "M0 3h6M3 0v6"];

/** The same as a small picture next to a name. */
export function swatch(name) {
  const picture = svg("svg", { class: "swatch", viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" });
  const body = svg("rect", { width: 12, height: 12, rx: 2 });
  const lines = svg("path", { fill: "none", class: "lines" });
  picture.append(body, lines);
  const update = (owner) => {
    const look = owner === null ? null : lookOf(owner);
    picture.setAttribute("data-known", look !== null);
    body.setAttribute("fill", look?.colour ?? "none");
    lines.setAttribute("d", look ? doubled(look.pattern) : "");
  };
  update(name);
  return [picture, update];
}

/** Drawn twice as large: the picture is two tiles wide, and lines have to be visible. */
const doubled = (pattern) => STROKES[pattern].replace(/-?\d+/g, (number) => String(Number(number) * 2));
