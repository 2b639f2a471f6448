// Lines over the last minutes, drawn by hand in SVG: one path, an area, and a scale that ends at a round number.

import { attribute, brief, h, rate, shownIf, svg, text } from "./dom.js";

const SIZE = 1000; // the drawing is stretched to its place, and lines keep their width (vector-effect)
const MINUTES = [1, 2, 5, 10]; // the spans of a chart: it uses the shortest that holds all known values
const GAP_MS = 30000; // the page slept, or the API was away: no line across

/** The smallest round number that is not below the value. */
export function roundedUp(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((round) => round >= value);
}

/** points: [[at, value or null]]. -> path data of the line, with gaps for unknown values. */
export function linePath(points, x, y) {
  let path = "";
  let last = null;
  for (const [at, value] of points) {
    if (value !== null) path += `${last !== null && at - last < GAP_MS ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    last = value === null ? null : at;
  }
  return path;
}

function areaPath(points, x, y) {
  let path = "";
  let run = [];
  const close = () => {
    if (run.length > 1) path += `M${x(run[0][0]).toFixed(1)} ${y(0)}${run.map(([at, value]) => `L${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("")}L${x(run.at(-1)[0]).toFixed(1)} ${y(0)}Z`;
    run = [];
  };
  for (const point of points) {
    if (point[1] === null || (run.length && point[0] - run.at(-1)[0] >= GAP_MS)) close();
    if (point[1] !== null) run.push(point);
  }
  close();
  return path;
}

/** The last known value holds until now: the line ends at the dot. */
function upTo(now, points) {
  const [at, value] = points.at(-1) ?? [now, null];
  return value !== null && now - at < GAP_MS ? [...points, [now, value]] : points;
}

/** -> [element, update(points, now)]. kind: lag or rate, which the style sheet colours. */
export function chart(kind, title, unit) {
  const value = h("span", { class: "value" }, "–");
  const summary = h("span", { class: "reader" });
  const [most, middle, begin, end] = [h("span"), h("span"), h("span"), h("span", { class: "end" })];
  const [area, line] = [svg("path", { class: "area" }), svg("path", { class: "line" })];
  const drawing = h("div", { class: `chart ${kind}`, "aria-hidden": "true" },
    h("div", { class: "scale" }, most, middle, h("span", {}, "0")),
    h("div", { class: "plot" }, svg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none" }, area, line), end),
    h("div", { class: "span" }, begin, h("span", {}, "now")));
  const element = h("figure", { class: "measure" }, h("figcaption", {}, h("span", { class: "label" }, title), h("span", {}, value, h("span", { class: "unit" }, unit)), summary), drawing);
  const tell = kind === "rate" ? rate : brief;
  const update = (history, now) => {
    const points = upTo(now, history);
    const known = points.map(([, each]) => each).filter((each) => each !== null);
    const top = roundedUp(Math.max(0, ...known));
    const minutes = MINUTES.find((each) => now - (points[0]?.[0] ?? now) <= each * 60000) ?? MINUTES.at(-1);
    const x = (at) => SIZE * (1 - (now - at) / (minutes * 60000));
    const y = (each) => SIZE * (1 - each / top);
    const last = points.at(-1)?.[1] ?? null;
    text(value, tell(last));
    text(begin, `${minutes} min ago`);
    text(most, brief(top));
    text(middle, brief(top / 2));
    attribute(line, "d", linePath(points, x, y));
    attribute(area, "d", areaPath(points, x, y));
    shownIf(end, last !== null);
    if (last !== null) end.style.top = `${(100 * (1 - last / top)).toFixed(1)}%`;
    text(summary, known.length ? `, between ${tell(Math.min(...known))} and ${tell(Math.max(...known))} while this page was open` : ", not known yet");
  };
  return [element, update];
}

