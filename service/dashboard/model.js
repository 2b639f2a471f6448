// What the page knows of the group, and how one answer leads to the next. No document, no network: values in, values out.

import { age } from "./dom.js";

const HISTORY_MS = 10 * 60 * 1000;
const MOVES_KEPT = 200;
const RATE_MS = 20000; // a rate is over this long, or over the time between two reports
const REPORT_MS = 15000; // heartbeats come more often than reports, which bring new totals
const SAMPLE_MS = 900;
const STALE_MS = 5000;
const order = new Intl.Collator("en", { numeric: true });

export const keyOf = (lease) => `${lease.pipeline}/${lease.partition}`;

export function emptyModel() {
  return {
    leases: new Map(), // in the order in which they are shown
    shape: 0, // changes when leases come or go
    epochAt: new Map(), // key -> when its epoch was seen to change last
    movedAt: new Map(), // key -> when its owner changed last
    moves: [], // newest first: {at, pipeline, from, to, partitions}
    hosts: [],
    heard: new Map(), // host -> Heard
    pipelines: [],
    problems: [],
    failures: new Map(), // key -> failure
    batches: [],
    lag: null, // null: not known yet
    lagOf: new Map(), // key -> events, or null if the feed could not count them
    ageOf: new Map(), // key -> seconds that the oldest of them has waited, or null if that is unknown
    history: new Map(), // pipeline -> {lag: [[at, value]], rate: [[at, value]]}
  };
}

// Leases

/** Takes in all leases; returns the moves since the last time. Those of one pipeline from one host to another are one move. */
export function takeLeases(model, told, now) {
  const before = model.leases;
  const items = told.map((lease) => newest(model, lease, now));
  const isSame = items.length === before.size && items.every((lease) => before.has(keyOf(lease)));
  const moves = movesBetween(before, items, now);
  if (isSame) {
    for (const lease of items) before.set(keyOf(lease), lease); // an existing key keeps its place
  } else {
    const sorted = items.toSorted((a, b) => rank(model, a.pipeline) - rank(model, b.pipeline) || order.compare(a.partition, b.partition));
    model.leases = new Map(sorted.map((lease) => [keyOf(lease), lease]));
    model.shape += 1;
  }
  for (const move of moves) for (const partition of move.partitions) model.movedAt.set(`${move.pipeline}/${partition}`, now);
  model.moves = [...moves, ...model.moves].slice(0, MOVES_KEPT);
  return moves;
}

/** A pipeline's place in the configuration, whose order mostly is how events flow through the pipelines. */
const rank = (model, pipeline) => model.pipelines.findIndex(({ name }) => name === pipeline);

export function changeLeases(model, { items, gone }, now) {
  const changed = new Map([...model.leases, ...items.map((lease) => [keyOf(lease), lease])]);
  for (const lease of gone) changed.delete(keyOf(lease));
  return takeLeases(model, [...changed.values()], now);
}

/** If another host gave an answer, it may be a moment older than the last one: an older epoch is ignored for a while. */
function newest(model, lease, now) {
  const key = keyOf(lease);
  const old = model.leases.get(key);
  if (old?.epoch === lease.epoch) return lease;
  if (old && lease.epoch < old.epoch && now - model.epochAt.get(key) < STALE_MS) return old;
  model.epochAt.set(key, now);
  return lease;
}

function movesBetween(before, items, now) {
  const grouped = new Map();
  for (const lease of items) {
    const old = before.get(keyOf(lease));
    if (!old || old.owner === lease.owner) continue;
    const id = JSON.stringify([lease.pipeline, old.owner, lease.owner]);
    if (!grouped.has(id)) grouped.set(id, { at: now, pipeline: lease.pipeline, from: old.owner, to: lease.owner, partitions: [] });
    grouped.get(id).partitions.push(lease.partition);
  }
  return [...grouped.values()];
}

export function countStates(model) {
  const counts = { owned: 0, available: 0, handing_over: 0, expired: 0, closed: 0 };
  for (const lease of model.leases.values()) counts[lease.state] += 1;
  return counts;
}

// Hosts

/** Takes in all hosts. A heartbeat is seen when its tick rises, at that moment of this page's own clock. */
export function takeHosts(model, items, now) {
  const names = new Set(items.map((host) => host.name));
  for (const name of model.heard.keys()) if (!names.has(name)) model.heard.delete(name);
  for (const host of items) model.heard.set(host.name, heard(model.heard.get(host.name), host, now));
  model.hosts = items.toSorted((a, b) => order.compare(a.name, b.name));
}

export function changeHosts(model, { items, gone }, now) {
  const names = new Set([...gone, ...items.map((host) => host.name)]);
  takeHosts(model, [...model.hosts.filter((host) => !names.has(host.name)), ...items], now);
}

/** at: when the heartbeat was last seen to change; null: not yet. samples: recent totals with their times, oldest first. */
function heard(last, host, now) {
  const sample = { at: now, totals: new Map(host.totals.map((each) => [each.pipeline, each])) };
  const next = { tick: host.tick, started: host.started_at };
  if (!last || last.started !== host.started_at) return { ...next, at: last ? now : null, samples: [sample] };
  const latest = last.samples.at(-1);
  const isOld = host.tick < last.tick || isBehind(sample.totals, latest.totals); // from a host that has not read it yet
  const isNews = host.tick > last.tick || (host.this && now - latest.at >= SAMPLE_MS); // a host's own totals are of this moment
  if (isOld || !isNews) return last;
  const isRepeated = !host.this && now - latest.at < REPORT_MS && isSame(sample.totals, latest.totals);
  const samples = isRepeated ? [...last.samples] : [...last.samples, sample];
  while (samples.length > 2 && samples[1].at < now - RATE_MS) samples.shift();
  return { ...next, at: host.tick > last.tick ? now : last.at, samples };
}

const isSame = (totals, last) =>
  totals.size === last.size &&
  [...last].every(([name, { events, dead_letters }]) => {
    const each = totals.get(name);
    return each?.events === events && each.dead_letters === dead_letters;
  });

const isBehind = (totals, last) => [...last].some(([name, { events }]) => (totals.get(name)?.events ?? 0) < events);

/** Events per second of one host, in one pipeline or all; null before its second report. */
export function hostRate(model, host, pipeline) {
  const samples = model.heard.get(host)?.samples ?? [];
  if (samples.length < 2) return null;
  const [first, last] = [samples[0], samples.at(-1)];
  return (sum(last.totals, "events", pipeline) - sum(first.totals, "events", pipeline)) / ((last.at - first.at) / 1000);
}

/** The rate of all hosts; null before any second report. */
export function rateOf(model, pipeline) {
  const rates = model.hosts.filter((host) => host.live !== false).map((host) => hostRate(model, host.name, pipeline));
  const known = rates.filter((rate) => rate !== null);
  return known.length ? known.reduce((a, b) => a + b) : null;
}

function sum(totals, field, pipeline) {
  let found = 0;
  for (const [name, each] of totals) if (pipeline === undefined || name === pipeline) found += each[field];
  return found;
}

export function deadLetters(model, pipeline) {
  let found = 0;
  for (const { samples } of model.heard.values()) found += sum(samples.at(-1).totals, "dead_letters", pipeline);
  return found;
}

// Pipelines, batches, lag

export function takePipelines(model, { items, problems }) {
  model.pipelines = items;
  model.problems = problems;
  model.failures = new Map();
  for (const pipeline of items)
    for (const failure of pipeline.failures) model.failures.set(`${pipeline.name}/${failure.partition}`, { ...failure, pipeline: pipeline.name });
}

export function takeLag(model, report) {
  model.lag = report;
  model.lagOf = new Map();
  model.ageOf = new Map();
  for (const pipeline of report.pipelines)
    for (const { partition, lag, seconds } of pipeline.partitions) {
      model.lagOf.set(`${pipeline.name}/${partition}`, lag);
      model.ageOf.set(`${pipeline.name}/${partition}`, seconds);
    }
}

/** The age of the oldest waiting event, of one pipeline or of all: "oldest 2.8 s". "" if none is known to wait. */
export function oldest(model, name) {
  const found = name === undefined ? model.lag : model.lag?.pipelines.find((pipeline) => pipeline.name === name);
  return found?.seconds ? `oldest ${age(found.seconds)}` : "";
}

export const lagOf = (model, pipeline) => {
  const found = model.lag?.pipelines.find(({ name }) => name === pipeline);
  return found && !found.partial ? found.lag : null;
};

/** A pipeline's lines up to what is known now: the page's first seconds, and a lag that was just received, are shown at once. */
export function linesOf(model, name, now) {
  const { lag, rate } = model.history.get(name) ?? { lag: [], rate: [] };
  const upToNow = (line, value) => ((line.at(-1)?.[1] ?? null) === null ? [...line, [now, value]] : line);
  return { lag: upToNow(lag, lagOf(model, name)), rate: upToNow(rate, rateOf(model, name)) };
}

/** Adds a point to every pipeline's lines, and drops what is older than the window. */
export function remember(model, now) {
  for (const { name } of model.pipelines) {
    if (!model.history.has(name)) model.history.set(name, { lag: [], rate: [] });
    const history = model.history.get(name);
    for (const [line, value] of [["lag", lagOf(model, name)], ["rate", rateOf(model, name)]]) {
      history[line].push([now, value]);
      while (history[line][0][0] < now - HISTORY_MS) history[line].shift();
    }
  }
}
