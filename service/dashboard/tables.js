// The tables and cards: hosts, leases, pipelines, batches, moves. Each keeps its rows by key and writes only what changed.

import { age, ago, attribute, bdi, brief, byId, count, h, keyed, moment, named, plural, rate, seconds, shownIf, svg, text, time } from "./dom.js";
import { chart } from "./charts.js";
import { standing } from "./map.js";
import { countStates, deadLetters, hostRate, keyOf, linesOf, oldest, rateOf } from "./model.js";
import { HEAT_FROM, heatOf, swatch } from "./palette.js";

const cell = (kind, ...children) => h("td", kind ? { class: kind } : {}, ...children);
const wall = (at) => new Date(performance.timeOrigin + at);

// At a glance

export function figures(model) {
  const counts = countStates(model);
  const live = model.hosts.filter((host) => host.live !== false).length;
  const open = model.leases.size - counts.closed;
  const troubles = model.failures.size;
  const dead = deadLetters(model);
  const items = [
    ["Leases with an owner", brief(counts.owned + counts.handing_over), `of ${brief(open)}`, counts.expired || counts.available ? "warn" : ""],
    ["Hosts alive", brief(live), `of ${brief(model.hosts.length)}`, live < model.hosts.length ? "warn" : ""],
    ["Lag", (model.lag?.partial ? "≥ " : "") + brief(model.lag && model.lag.lag), [model.lag?.unknown ? `${brief(model.lag.unknown)} unknown` : "events", oldest(model)].filter(Boolean).join(", "), model.lag?.unknown ? "warn" : ""],
    ["Throughput", rate(rateOf(model)), "events/s", ""],
    ["Failing partitions", brief(troubles), troubles ? "see below" : "", troubles ? "bad" : ""],
    ["Dead letters", brief(dead), "since hosts started", dead ? "warn" : ""],
  ];
  keyed(byId("figures"), items, ([name]) => name, ([name]) => {
    const [value, note] = [h("span", { class: "value" }), h("span", { class: "note" })];
    const element = h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, value, " ", note));
    return [element, ([, now, more, mood]) => {
      text(value, now);
      text(note, more);
      attribute(element, "data-mood", mood || null);
    }];
  });
}

export function attention(model, open) {
  const told = [
    ...model.problems.map((what) => ({ id: what, what })),
    ...[...model.failures].map(([key, failure]) => ({ id: `! ${key}`, key, ...failure })),
  ];
  shownIf(byId("attention"), told.length > 0);
  keyed(byId("problems"), told.slice(0, 100), ({ id }) => id, ({ what, key, pipeline, partition }) => {
    if (what !== undefined) return [h("li", {}, named(what)), () => {}];
    const [error, more] = [h("span", { class: "error" }), h("span", { class: "note" })];
    const button = h("button", { type: "button", class: "link", onclick: () => open(key) }, bdi(`${pipeline}/${partition}`));
    return [h("li", {}, button, " ", error, " ", more), (failure) => {
      text(error, named(failure.error));
      text(more, `on ${named(failure.host)}, ${plural(failure.failures, "failure")} in a row, tried again at ${time(new Date(failure.retry_at))}`);
    }];
  });
}

// Legend

export function legend(model, only, choose) {
  const owners = new Map();
  for (const lease of model.leases.values()) if (lease.owner !== null) owners.set(lease.owner, (owners.get(lease.owner) ?? 0) + 1);
  for (const host of model.hosts) if (!owners.has(host.name)) owners.set(host.name, 0);
  keyed(byId("legend"), [...owners].sort(([a], [b]) => (a < b ? -1 : 1)), ([name]) => name, ([name]) => {
    const [picture, paint] = swatch(name);
    const number = h("span", { class: "note" });
    const button = h("button", { type: "button", class: "host", title: "Show only this host's leases", onclick: () => choose(name) }, picture, bdi(name), number);
    return [button, ([, leases]) => {
      paint(name);
      text(number, count(leases));
      attribute(button, "aria-pressed", String(only() === name));
    }];
  });
}

/** What the colours of lag mean. */
export function heat() {
  keyed(byId("heat"), HEAT_FROM, (from) => from, (from) => {
    const body = svg("rect", { width: 12, height: 12, rx: 2 });
    const picture = svg("svg", { class: "swatch", viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true", "data-known": true }, body);
    return [h("span", { class: "step" }, picture, from === 0 ? "none behind" : `${count(from)} or more`), () => attribute(body, "fill", heatOf(from))];
  });
}

// Hosts

const HOST_STATES = { live: "live", dead: "silent", draining: "draining", unknown: "unknown" };
const MOODS = { live: "good", dead: "bad", draining: "warn" };
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export function hosts(model, now) {
  shownIf(byId("host-none"), model.hosts.length === 0);
  shownIf(byId("host-table"), model.hosts.length > 0);
  const most = Math.max(1, ...model.hosts.map((host) => host.leases));
  const items = model.hosts.map((host) => ({ host, most, at: model.heard.get(host.name)?.at, rate: hostRate(model, host.name), now }));
  keyed(byId("host-rows"), items, ({ host }) => host.name, ({ host }) => hostRow(host));
}

function conditionOf(host) {
  if (host.live === false) return "dead";
  if (host.draining) return "draining";
  return host.live === null ? "unknown" : "live";
}

function hostRow(first) {
  const [picture, paint] = swatch(first.name);
  const [here, state] = [h("span", { class: "badge" }, "answers here"), h("span", { class: "badge" })];
  const [beat, since] = [h("span", { class: "beat", "aria-hidden": "true" }), h("span")];
  const [bar, leases] = [h("span", { class: "fill" }), h("span", { class: "amount" })];
  const [events, failing, suspended, started] = [cell("number"), cell("number"), cell("number"), cell()];
  const share = cell("share", h("span", { class: "bar", "aria-hidden": "true" }, bar), leases);
  const row = h("tr", {}, h("th", { scope: "row" }, picture, bdi(first.name), here), cell("", state), cell("", beat, since), share, events, failing, suspended, started);
  let ticked = first.tick;
  return [row, ({ host, most, at, rate: speed, now }) => {
    const condition = conditionOf(host);
    paint(host.name);
    shownIf(here, host.this);
    text(state, HOST_STATES[condition]);
    attribute(state, "data-mood", MOODS[condition]);
    attribute(beat, "data-mood", MOODS[condition]);
    if (ticked !== host.tick && !calm.matches) beat.animate([{ opacity: 1, transform: "scale(1.6)" }, { opacity: 0.4, transform: "scale(1)" }], 900);
    ticked = host.tick;
    text(since, at == null ? "none yet" : ago((now - at) / 1000));
    bar.style.width = `${(100 * host.leases) / most}%`;
    text(leases, host.leases_max == null ? count(host.leases) : `${count(host.leases)} of ${count(host.leases_max)}`);
    text(events, rate(speed));
    text(failing, count(host.failing));
    text(suspended, count(host.suspended));
    text(started, moment(new Date(host.started_at)));
  }];
}

// Pipelines

export function pipelines(model, now, act) {
  const items = model.pipelines.map((pipeline) => ({ pipeline, now }));
  keyed(byId("pipelines"), items, ({ pipeline }) => pipeline.name, ({ pipeline: { name } }) => {
    const [lag, showLag] = chart("lag", "Lag", "events");
    const [speed, showSpeed] = chart("rate", "Throughput", "events/s");
    const [route, state, states, dead, waits, ages] = [h("p", { class: "route" }), h("span", { class: "badge", "data-mood": "warn" }, "paused"), h("span"), h("span"), h("span"), h("span")];
    const why = h("p", { class: "why" });
    const button = h("button", { type: "button", class: "quiet", onclick: () => act(name, card.dataset.paused === "true") });
    const card = h("article", { class: "card", "aria-label": `Pipeline ${named(name)}` },
      h("div", { class: "heading" }, h("h3", {}, bdi(name), state), button), route, why, h("div", { class: "measures" }, lag, speed), h("p", { class: "note" }, states, dead, waits, ages));
    return [card, ({ pipeline, now }) => {
      const lines = linesOf(model, name, now);
      const letters = deadLetters(model, name);
      attribute(card, "data-paused", String(Boolean(pipeline.paused)));
      text(route, `${named(pipeline.feed)} → ${named(pipeline.sink)}`);
      shownIf(state, Boolean(pipeline.paused));
      shownIf(why, Boolean(pipeline.paused));
      text(why, named(pipeline.paused ?? ""));
      text(button, pipeline.paused ? "Resume" : "Pause");
      attribute(button, "aria-label", `${pipeline.paused ? "Resume" : "Pause"} ${named(name)}`);
      text(states, Object.entries(pipeline.leases).map(([each, number]) => `${count(number)} ${each.replace("_", " ")}`).join(" · ") || "no leases");
      text(dead, letters ? ` · ${plural(letters, "dead letter")}` : "");
      const waiting = oldest(model, name);
      text(waits, waiting ? ` · ${waiting}` : "");
      const delivered = pipeline.event_age;
      text(ages, delivered ? ` · age when delivered: half within ${seconds(delivered.p50_s)}, 99% within ${seconds(delivered.p99_s)}` : "");
      showLag(lines.lag, now);
      showSpeed(lines.rate, now);
    }];
  });
}

// Batches and moves

export function batches(model) {
  shownIf(byId("batch-none"), model.batches.length === 0);
  shownIf(byId("batch-table"), model.batches.length > 0);
  const slowest = Math.max(0.001, ...model.batches.map((batch) => batch.waited_s + batch.transform_s + batch.deliver_s));
  const id = ({ batch: { pipeline, partition, epoch, to, host } }) => JSON.stringify([pipeline, partition, epoch, to, host]);
  keyed(byId("batch-rows"), model.batches.map((batch) => ({ batch, slowest })), id, ({ batch }) => batchRow(batch));
}

function batchRow({ at, pipeline, partition, host, events, waited_s: wait, transform_s: transform, deliver_s: deliver }) {
  const parts = Object.entries({ wait, transform, deliver }).map(([stage, took]) => [h("span", { class: `stage ${stage}` }), took]);
  const said = `wait ${seconds(wait)}, transform ${seconds(transform)}, deliver ${seconds(deliver)}`;
  const bar = h("span", { class: "stages", "aria-hidden": "true" }, ...parts.map(([part]) => part));
  const took = h("td", { title: said }, bar, h("span", { class: "reader" }, said));
  const row = h("tr", {}, cell("when", time(new Date(at))), cell("", bdi(pipeline)), cell("", bdi(partition)), cell("", bdi(host)), cell("number", count(events)), cell("number", seconds(wait + transform + deliver)), took);
  return [row, ({ slowest }) => {
    for (const [part, length] of parts) part.style.width = `${(100 * length) / slowest}%`;
  }];
}

export function moves(model) {
  shownIf(byId("moves-none"), model.moves.length === 0);
  shownIf(byId("moves"), model.moves.length > 0);
  keyed(byId("moves"), model.moves.slice(0, 60), ({ at, pipeline, from, to }) => JSON.stringify([at, pipeline, from, to]), ({ at, pipeline, partitions, from, to }) => {
    const what = partitions.length === 1 ? h("span", {}, "lease ", h("strong", {}, bdi(partitions[0]))) : h("strong", {}, plural(partitions.length, "lease"));
    const ends = [from, to].map((name) => ({ name, swatch: swatch(name), shown: name === null ? h("i", {}, "no owner") : bdi(name) }));
    const [left, joined] = ends.map((end) => h("span", { class: "owner" }, end.swatch[0], end.shown));
    const row = h("li", {}, h("time", {}, time(wall(at))), h("span", {}, what, " of ", bdi(pipeline)), h("span", { class: "from-to" }, left, " → ", joined));
    return [row, () => ends.forEach((end) => end.swatch[1](end.name))];
  });
}

/** The text about moves for screen readers. */
export const told = (moved) =>
  moved.map(({ partitions, pipeline, from, to }) => `${plural(partitions.length, "lease")} of ${named(pipeline)} moved from ${named(from ?? "no owner")} to ${named(to ?? "no owner")}`).join("; ");

// Leases as a table

const ROWS = 50;
const STATES = ["owned", "available", "handing_over", "expired", "closed"];

export class LeaseTable {
  constructor(open) {
    this.open = open;
    this.page = 0;
    this.filters = byId("filters");
    this.filters.addEventListener("input", () => this.#from(0));
    this.filters.addEventListener("submit", (event) => event.preventDefault());
    byId("page-back").addEventListener("click", () => this.#from(this.page - 1));
    byId("page-on").addEventListener("click", () => this.#from(this.page + 1));
    options(this.filters.elements.state, STATES, (state) => state.replace("_", " "));
  }

  #from(page) {
    this.page = page;
    this.show(this.model);
  }

  show(model) {
    this.model = model;
    const { text: part, pipeline, owner, state } = this.filters.elements;
    options(pipeline, model.pipelines.map(({ name }) => name));
    options(owner, model.hosts.map(({ name }) => name));
    const found = [...model.leases.values()].filter((lease) =>
      lease.partition.includes(part.value) && isMet(pipeline, lease.pipeline) && isMet(owner, lease.owner) && isMet(state, lease.state));
    const pages = Math.max(1, Math.ceil(found.length / ROWS));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    keyed(byId("lease-rows"), found.slice(this.page * ROWS, (this.page + 1) * ROWS), keyOf, (lease) => this.#row(lease));
    shownIf(byId("lease-none"), found.length === 0);
    text(byId("page-text"), `${plural(found.length, "lease")}, page ${this.page + 1} of ${pages}`);
    byId("page-back").disabled = this.page === 0;
    byId("page-on").disabled = this.page === pages - 1;
  }

  #row(first) {
    const key = keyOf(first);
    const [picture, paint] = swatch(first.owner);
    const [owner, state] = [h("span", { class: "name" }), h("span", { class: "badge" })];
    const [epoch, lag, waits, position] = [cell("number"), cell("number"), cell("number"), cell("position")];
    const button = h("button", { type: "button", class: "link", onclick: () => this.open(key) }, bdi(first.partition));
    const row = h("tr", {}, h("th", { scope: "row" }, button), cell("", bdi(first.pipeline)), cell("", state), cell("", picture, owner), epoch, lag, waits, position);
    return [row, (lease) => {
      const isFailing = this.model.failures.has(key);
      paint(lease.owner);
      text(owner, lease.owner === null ? "no owner" : lease.state === "handing_over" ? standing(lease) : named(lease.owner));
      text(state, isFailing ? "failing" : lease.state.replace("_", " "));
      attribute(state, "data-mood", isFailing || lease.state === "expired" ? "bad" : lease.state === "owned" ? "good" : lease.state === "closed" ? null : "warn");
      text(epoch, count(lease.epoch));
      text(lag, count(this.model.lagOf.get(key)));
      text(waits, age(this.model.ageOf.get(key)));
      text(position, named(lease.continuation ?? "beginning"));
      attribute(position, "title", named(lease.continuation ?? ""));
    }];
  }
}

const isMet = (select, value) => select.value === "" || select.value === `=${value}`;

/** "" for all; what is chosen stays chosen while others come and go. */
function options(select, values, shown = named) {
  const label = (value) => (value === "" ? "all" : shown(value.slice(1)));
  keyed(select, ["", ...values.map((value) => `=${value}`)], (value) => value, (value) => [h("option", { value }, label(value)), () => {}]);
}
