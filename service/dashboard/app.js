// Keeps the page up to date with the group: loads everything, follows changes, and draws once for each round of news.

import * as api from "./api.js";
import { askForToken, openLease, pauseOrResume } from "./detail.js";
import { byId, named, shownIf, text, time } from "./dom.js";
import { LeaseMap } from "./map.js";
import { changeHosts, changeLeases, emptyModel, keyOf, remember, takeHosts, takeLag, takeLeases, takePipelines } from "./model.js";
import { onTheme, seat } from "./palette.js";
import * as tables from "./tables.js";

const EVERY_MS = { group: 2000, batches: 3000, lag: 5000, lines: 2000 };
const RETRY_MAX_MS = 5000;
const COST = 8; // the page waits this many times as long as an answer took, so it sends fewer requests about a large group
const BATCHES = 25;

const model = emptyModel();
const health = { refused: null, since: null, updated: null, failures: 0, tookMs: 0 }; // tookMs: of the last load
const drawings = { page: [], map: [] }; // milliseconds of the last drawings, for measurements: window.leasehold
let only = null;
let asking = false;

// Asking

/** Loads everything. Later changes arrive as events, or by loading again. */
async function load() {
  const began = performance.now();
  const asked = Promise.all([api.get("/api/pipelines"), api.get("/api/hosts"), api.leases()]);
  const [pipelines, hosts, leases] = await asked.finally(() => (health.tookMs = performance.now() - began));
  takePipelines(model, pipelines);
  takeHosts(model, hosts.items, performance.now());
  const isFirst = model.leases.size === 0;
  const moves = takeLeases(model, leases, performance.now());
  if (!isFirst) announce(moves);
}

const changes = {
  ready: load,
  leases: (data) => announce(changeLeases(model, data, performance.now())),
  hosts: (data) => changeHosts(model, data, performance.now()),
  pipelines: (data) => takePipelines(model, data),
  comment() {},
};

async function follow(signal) {
  let isTold = false;
  for await (const [event, data] of api.events(signal)) {
    isTold = true;
    if (event === "away") failed(new api.Refused(503, data.detail));
    else {
      await changes[event]?.(data);
      answered();
    }
    render();
  }
  return isTold;
}

/** Follows the group: by events if the host sends them, else by polling. */
async function watchGroup() {
  for (;;) {
    await visible();
    try {
      if (await follow(whileVisible())) continue;
      await load();
      answered();
    } catch (error) {
      failed(error);
    }
    render();
    await pause("group", Math.max(health.failures ? retryMs() : EVERY_MS.group, COST * health.tookMs));
  }
}

async function repeat(name, task) {
  for (;;) {
    await visible();
    const began = performance.now();
    await task();
    await pause(name, Math.max(EVERY_MS[name], COST * (performance.now() - began)));
  }
}

/** The rest of the page works without lag and batches. A lag that cannot be determined is shown as unknown. */
async function askLag() {
  const report = await api.get("/api/lag?partly=true").catch(unanswered);
  if (report) takeLag(model, report);
  else Object.assign(model, { lag: null, lagOf: new Map(), ageOf: new Map() });
}

async function askBatches() {
  const report = await api.get(`/api/batches?limit=${BATCHES}`).catch(unanswered);
  if (report) model.batches = report.items;
}

function unanswered(error) {
  if (!(error instanceof api.Refused)) throw error;
}

function answered() {
  Object.assign(health, { refused: null, since: null, updated: new Date(), failures: 0 });
}

function failed(error) {
  if (!(error instanceof api.Refused)) throw error;
  health.refused = error;
  health.since ??= new Date();
  health.failures += 1;
  if (error.status === 401) void needToken("This host shows its group only to readers.");
}

const retryMs = () => Math.min(RETRY_MAX_MS, 1000 * 2 ** Math.min(health.failures - 1, 4));

function pause(name, wait) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, wait);
    wakers.set(name, () => (clearTimeout(timer), resolve()));
  });
}

const wakers = new Map();
const wake = () => wakers.forEach((each) => each());
const visible = () => document.hidden && new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));

function whileVisible() {
  const ended = new AbortController();
  document.addEventListener("visibilitychange", () => ended.abort(), { once: true });
  return ended.signal;
}

async function needToken(why) {
  if (asking) return;
  asking = true;
  const given = await askForToken(why);
  asking = false;
  if (given) wake();
}

// Showing

const say = (what) => {
  byId("say").textContent = what;
};

function announce(moves) {
  if (moves.length) say(tables.told(moves));
}

const map = new LeaseMap({
  root: byId("map"),
  canvas: byId("map-canvas"),
  tip: byId("map-tip"),
  say,
  open: (lease) => open(keyOf(lease)),
  drawn: (took) => keep(drawings.map, took),
});
const table = new tables.LeaseTable((key) => open(key));

function open(key) {
  const lease = model.leases.get(key);
  if (lease) void openLease(lease, { hosts: () => model.hosts.filter((host) => host.live !== false).map(({ name }) => name), failure: (each) => model.failures.get(each), changed: wake });
}

function choose(name) {
  only = only === name ? null : name;
  map.only = only;
  render();
}

function keep(list, took) {
  list.push(took);
  if (list.length > 500) list.shift();
}

function render() {
  const began = performance.now();
  draw(began);
  keep(drawings.page, performance.now() - began);
}

function draw(now) {
  seat([...new Set([...model.hosts.map((host) => host.name), ...owners()])]);
  status();
  if (health.updated === null) return;
  tables.figures(model);
  tables.attention(model, open);
  tables.hosts(model, now);
  tables.pipelines(model, now, (name, isPaused) => pauseOrResume(name, isPaused, { say: notify, changed: wake }));
  tables.batches(model);
  tables.moves(model);
  showLeases();
}

function showLeases() {
  const isTable = byId("view").querySelector(":checked").value === "table";
  shownIf(byId("table-view"), isTable);
  shownIf(byId("map-view"), !isTable);
  shownIf(byId("colour"), !isTable);
  shownIf(byId("map"), model.leases.size > 0);
  shownIf(byId("map-empty"), model.leases.size === 0);
  text(byId("map-empty"), "There are no leases yet: a host creates one for each partition that it finds in a feed.");
  if (isTable) return table.show(model);
  shownIf(byId("legend"), map.colour === "owner" && model.leases.size > 0);
  shownIf(byId("heat"), map.colour === "lag" && model.leases.size > 0);
  tables.legend(model, () => only, choose);
  tables.heat();
  map.show(model);
}

function* owners() {
  for (const lease of model.leases.values()) if (lease.owner !== null) yield lease.owner;
}

function status() {
  const { refused, since, updated } = health;
  const isAway = refused !== null && refused.status !== 401;
  byId("status").dataset.state = refused ? "away" : updated ? "live" : "waiting";
  text(byId("status-text"), refused ? (refused.status === 401 ? "A token is needed" : "Not up to date") : updated ? `Live, ${time(updated)}` : "Asking the API");
  shownIf(byId("away"), isAway);
  if (isAway) text(byId("away"), `The API has been away since ${time(since)}: ${named(refused.message)}. The page shows the last known state${updated ? `, of ${time(updated)}` : ""}, and retries automatically.`);
  text(byId("token-open"), api.token.get() ? "Token is set" : "Token");
  const live = model.hosts.filter((host) => host.live !== false).length;
  document.title = refused ? "(!) Leasehold" : `Leasehold · ${live} hosts · ${model.leases.size} leases`;
}

/** The outcome of an action: announced, and a failure is shown until the next action. */
function notify(what, isFailure = false) {
  if (!isFailure) say(what);
  shownIf(byId("notice"), isFailure);
  text(byId("notice"), isFailure ? what : "");
}

for (const choice of document.querySelectorAll("input[name=view], input[name=colour]"))
  choice.addEventListener("change", () => {
    map.colour = byId("colour").querySelector(":checked").value;
    render();
  });
byId("token-open").addEventListener("click", () => void needToken("Reading requires a token from api.readers; operating requires one from api.operators."));
document.addEventListener("visibilitychange", () => document.hidden || wake());
onTheme(() => render());

window.leasehold = { model, drawings };
void watchGroup();
void repeat("batches", askBatches);
void repeat("lag", askLag);
void repeat("lines", () => {
  if (health.updated !== null && !health.refused) remember(model, performance.now());
  render();
});
