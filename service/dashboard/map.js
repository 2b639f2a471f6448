// The map of leases: every lease is a cell, coloured by its owner or by its lag. It is drawn on a canvas, as a whole, at every change:
// four thousand rectangles cost a few milliseconds, four thousand elements a layout.

import { age, named, plural } from "./dom.js";
import { keyOf } from "./model.js";
import { fillOf, heatOf, lookOf } from "./palette.js";

const LABEL = 26; // above a pipeline's cells
const BELOW = 14;
const TILE = { width: 168, height: 54, gap: 8 };
const TILES_MAX = 40; // this many leases have room for their names
const CELL = { min: 7, max: 26 };
const AREA = 400; // about how high the cells of all pipelines may be
const MARGIN = 5; // around the whole map, for rings; the style sheet cancels it
const MOVED_MS = 1600;
const FRAME_MS = 50; // enough for a ring that fades
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** The layout, pure. width: the canvas's; leases: in order. -> {height, cells: [{key, x, y, w, h}], labels, roomy} */
export function layout(leases, width) {
  const roomy = leases.length <= TILES_MAX;
  const size = roomy ? tileSize(width) : cellSize(leases.length, width);
  const columns = Math.max(1, Math.floor((width + size.gap) / (size.w + size.gap)));
  const cells = [];
  const labels = [];
  let y = 0;
  for (const [pipeline, members] of byPipeline(leases)) {
    labels.push({ pipeline, y, count: members.length });
    y += LABEL;
    members.forEach((lease, i) =>
      cells.push({ key: keyOf(lease), x: (i % columns) * (size.w + size.gap), y: y + Math.floor(i / columns) * (size.h + size.gap), w: size.w, h: size.h }),
    );
    y += Math.ceil(members.length / columns) * (size.h + size.gap) - size.gap + BELOW;
  }
  return { height: Math.max(0, y - BELOW), cells, labels, roomy, columns, step: { x: size.w + size.gap, y: size.h + size.gap } };
}

function tileSize(width) {
  const columns = Math.max(1, Math.floor((width + TILE.gap) / (TILE.width + TILE.gap)));
  return { w: Math.min(280, Math.floor((width + TILE.gap) / columns) - TILE.gap), h: TILE.height, gap: TILE.gap };
}

function cellSize(count, width) {
  const step = Math.floor(Math.sqrt((width * AREA) / count));
  const size = Math.min(CELL.max, Math.max(CELL.min, step));
  const gap = size > 13 ? 2 : 1;
  return { w: size - gap, h: size - gap, gap };
}

function byPipeline(leases) {
  const found = new Map();
  for (const lease of leases) {
    if (!found.has(lease.pipeline)) found.set(lease.pipeline, []);
    found.get(lease.pipeline).push(lease);
  }
  return found;
}

export class LeaseMap {
  /** open: called with a lease. drawn: called with the milliseconds that a drawing took. */
  constructor({ root, canvas, tip, say, open, drawn }) {
    Object.assign(this, { root, canvas, tip, say, open, drawn });
    this.context = canvas.getContext("2d");
    this.model = null;
    this.plan = { height: 0, cells: [], labels: [], step: { x: 1, y: 1 } };
    this.places = new Map(); // key -> index of its cell
    this.colour = "owner";
    this.only = null; // the only host whose leases are highlighted
    this.cursor = -1;
    this.asked = 0;
    new ResizeObserver(([entry]) => this.#resized(Math.floor(entry.contentRect.width))).observe(root);
    root.addEventListener("pointermove", (event) => this.#pointed(this.#at(event), event));
    root.addEventListener("pointerleave", () => this.#pointed(-1));
    root.addEventListener("click", (event) => this.#opened(this.#at(event)));
    root.addEventListener("keydown", (event) => this.#pressed(event));
    root.addEventListener("blur", () => this.#went(-1));
  }

  show(model) {
    if (this.model !== model || this.shape !== model.shape) {
      this.model = model;
      this.shape = model.shape;
      this.#planned();
    }
    this.redraw();
  }

  /** Draws once at the next frame, however often it is called. */
  redraw() {
    this.asked ||= requestAnimationFrame(() => {
      this.asked = 0;
      if (this.model && this.width) this.#draw();
    });
  }

  #resized(width) {
    if (width === this.width) return;
    this.width = width;
    this.#planned();
    this.redraw();
  }

  #planned() {
    if (!this.model || !this.width) return;
    this.plan = layout([...this.model.leases.values()], this.width);
    this.places = new Map(this.plan.cells.map((cell, i) => [cell.key, i]));
    if (this.cursor >= this.plan.cells.length) this.cursor = -1;
    this.scale = Math.min(3, Math.ceil(devicePixelRatio || 1));
    for (const [side, length] of [["width", this.width], ["height", this.plan.height]]) {
      this.canvas[side] = (length + 2 * MARGIN) * this.scale;
      this.canvas.style[side] = `${length + 2 * MARGIN}px`;
    }
  }

  // Drawing

  #draw() {
    const began = performance.now();
    const style = getComputedStyle(this.root);
    this.ink = Object.fromEntries(["ink", "muted", "line", "surface", "raised", "bad"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
    const { context, model, plan } = this;
    context.setTransform(this.scale, 0, 0, this.scale, MARGIN * this.scale, MARGIN * this.scale);
    context.clearRect(-MARGIN, -MARGIN, this.width + 2 * MARGIN, plan.height + 2 * MARGIN);
    for (const label of plan.labels) this.#drawLabel(label);
    for (const cell of plan.cells) {
      const lease = model.leases.get(cell.key);
      context.globalAlpha = this.only === null || lease.owner === this.only || lease.handoff_to === this.only ? 1 : 0.14;
      if (plan.roomy) this.#drawTile(cell, lease);
      else this.#drawCell(cell, lease);
    }
    context.globalAlpha = 1;
    const isMoving = this.#drawMoves();
    if (this.cursor >= 0) this.#ring(plan.cells[this.cursor], this.ink.ink, 2, 2);
    this.drawn(performance.now() - began);
    if (isMoving) setTimeout(() => this.redraw(), FRAME_MS);
  }

  #drawLabel({ pipeline, y, count }) {
    const { context, ink } = this;
    context.textBaseline = "top";
    context.font = "600 13px system-ui, sans-serif";
    context.fillStyle = ink.ink;
    const name = this.#fitting(named(pipeline), this.width * 0.7);
    context.fillText(name, 0, y + 3);
    const end = context.measureText(name).width;
    context.font = "13px system-ui, sans-serif";
    context.fillStyle = ink.muted;
    context.fillText(plural(count, "lease"), end + 8, y + 3);
  }

  #drawCell({ key, x, y, w, h }, lease) {
    const { context, ink } = this;
    this.#fill(lease, x, y, w, h, key);
    if (!this.model.failures.has(key)) return;
    const inset = Math.max(1, Math.floor(w / 4));
    context.fillStyle = ink.surface;
    context.fillRect(x + inset - 1, y + inset - 1, w - 2 * inset + 2, h - 2 * inset + 2);
    context.fillStyle = ink.bad;
    context.fillRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset);
  }

  /** A cell's body shows owner and state. If the map is coloured by lag, a closed or unread partition has no body. */
  #fill(lease, x, y, w, h, key) {
    const { context, ink } = this;
    if (lease.state === "closed") return this.#dot(x + w / 2, y + h / 2, Math.max(1, w / 8));
    if (this.colour === "lag") {
      const lag = this.model.lagOf.get(key);
      return lag == null ? this.#hollow(x, y, w, h) : this.#rect(heatOf(lag), x, y, w, h);
    }
    const look = lease.owner === null ? null : lookOf(lease.owner);
    if (lease.owner === null) this.#hollow(x, y, w, h);
    else this.#rect(look ? fillOf(context, look, ink.surface, this.scale) : ink.muted, x, y, w, h);
    if (lease.state === "expired") this.#crossed(x, y, w, h);
    if (lease.state === "handing_over") this.#corner(lookOf(lease.handoff_to), x, y, w, h);
  }

  #rect(fill, x, y, w, h) {
    this.context.fillStyle = fill;
    this.context.fillRect(x, y, w, h);
  }

  #hollow(x, y, w, h) {
    this.context.strokeStyle = this.ink.muted;
    this.context.lineWidth = 1;
    this.context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
  }

  #dot(x, y, radius) {
    this.context.fillStyle = this.ink.muted;
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.context.fill();
  }

  #crossed(x, y, w, h) {
    const { context, ink } = this;
    context.strokeStyle = ink.surface;
    context.lineWidth = Math.max(1.5, w / 6);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + w, y + h);
    context.moveTo(x + w, y);
    context.lineTo(x, y + h);
    context.stroke();
  }

  #corner(look, x, y, w, h) {
    const { context, ink } = this;
    context.beginPath();
    context.moveTo(x + w, y);
    context.lineTo(x + w, y + h);
    context.lineTo(x, y + h);
    context.closePath();
    context.fillStyle = look?.colour ?? ink.muted;
    context.fill();
    context.strokeStyle = ink.surface;
    context.lineWidth = 1;
    context.stroke();
  }

  #drawTile({ key, x, y, w, h }, lease) {
    const { context, ink } = this;
    context.fillStyle = ink.raised;
    context.strokeStyle = this.model.failures.has(key) ? ink.bad : ink.line;
    context.lineWidth = this.model.failures.has(key) ? 2 : 1;
    context.beginPath();
    context.roundRect(x + 1, y + 1, w - 2, h - 2, 6);
    context.fill();
    context.save();
    context.clip();
    this.#fill(lease, x, y, 16, h, key);
    context.restore();
    context.stroke();
    context.textBaseline = "alphabetic";
    context.fillStyle = ink.ink;
    context.font = "600 13px system-ui, sans-serif";
    context.fillText(this.#fitting(named(lease.partition), w - 36), x + 26, y + 23);
    context.fillStyle = this.model.failures.has(key) ? ink.bad : ink.muted;
    context.font = "12px system-ui, sans-serif";
    context.fillText(this.#fitting(this.model.failures.has(key) ? "failing" : standing(lease), w - 36), x + 26, y + 41);
  }

  #fitting(text, width) {
    const { context } = this;
    let shown = text.length > 120 ? `${text.slice(0, 120)}…` : text;
    if (context.measureText(shown).width <= width) return shown;
    while (shown.length > 1 && context.measureText(`${shown}…`).width > width) shown = shown.slice(0, -1);
    return `${shown}…`;
  }

  /** A ring that widens and fades around a cell that moved. With reduced motion, it does not move. */
  #drawMoves() {
    const now = performance.now();
    let isMoving = false;
    for (const [key, at] of this.model.movedAt) {
      const age = now - at;
      const cell = this.plan.cells[this.places.get(key)];
      if (age > MOVED_MS || !cell) {
        this.model.movedAt.delete(key);
        continue;
      }
      isMoving = true;
      this.context.globalAlpha = calm.matches ? 1 : 1 - age / MOVED_MS;
      this.#ring(cell, this.ink.ink, calm.matches ? 1 : 1 + 3 * (age / MOVED_MS), 2);
    }
    this.context.globalAlpha = 1;
    return isMoving;
  }

  #ring({ x, y, w, h }, colour, out, line) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.beginPath();
    context.roundRect(x - out, y - out, w + 2 * out, h + 2 * out, 3);
    context.stroke();
  }

  // Pointer and keys

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - MARGIN, event.clientY - box.top - MARGIN];
    return this.plan.cells.findIndex((cell) => x >= cell.x && x <= cell.x + cell.w && y >= cell.y && y <= cell.y + cell.h);
  }

  #pointed(index) {
    this.root.classList.toggle("aims", index >= 0);
    this.#tell(index);
  }

  #tell(index) {
    const cell = this.plan.cells[index];
    this.tip.hidden = !cell;
    if (!cell) return;
    this.tip.textContent = this.describe(cell.key);
    const left = Math.min(cell.x, Math.max(0, this.width - this.tip.offsetWidth));
    this.tip.style.transform = `translate(${left}px, ${cell.y + cell.h + 6}px)`;
  }

  describe(key) {
    const lease = this.model.leases.get(key);
    const lag = this.model.lagOf.get(key);
    const parts = [`${named(lease.partition)} of ${named(lease.pipeline)}`, standing(lease)];
    const waits = this.model.ageOf.get(key);
    if (lag != null) parts.push(`${plural(lag, "event")} behind${waits ? `, the oldest ${age(waits)}` : ""}`);
    if (this.model.failures.has(key)) parts.push("failing");
    return parts.join(", ");
  }

  #opened(index) {
    const cell = this.plan.cells[index];
    if (cell) this.open(this.model.leases.get(cell.key));
  }

  #pressed(event) {
    if (event.key === "Enter" || event.key === " ") this.#opened(this.cursor);
    else if (event.key === "Escape") this.#went(-1);
    else if (!this.#stepped(event.key)) return;
    event.preventDefault();
  }

  #stepped(key) {
    const { cells, columns } = this.plan;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (key === "Home") this.#went(0);
    else if (key === "End") this.#went(cells.length - 1);
    else if (key in steps) this.#went(this.cursor < 0 ? 0 : Math.min(cells.length - 1, Math.max(0, this.cursor + steps[key])));
    else return false;
    return true;
  }

  #went(index) {
    const cell = this.plan.cells[index];
    this.cursor = cell ? index : -1;
    this.#tell(this.cursor);
    if (cell) this.say(this.describe(cell.key));
    this.redraw();
  }
}

export function standing({ state, owner, handoff_to: to }) {
  if (state === "owned") return named(owner);
  if (state === "handing_over") return owner === null ? `waits for ${named(to)}` : `${named(owner)} → ${named(to)}`;
  return { available: "available", expired: `expired, was ${named(owner ?? "")}`, closed: "closed" }[state];
}
