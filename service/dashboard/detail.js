// All about one lease, with an operator's actions, and the questions before each action.

import { lease as fetchLease, leasePath, operate, Refused, segment, token } from "./api.js";
import { bdi, byId, count, h, named } from "./dom.js";
import { standing } from "./map.js";
import { swatch } from "./palette.js";

const dialog = byId("lease");
const question = byId("confirm");
const tokens = byId("token");

// Tokens

/** Requests a token from the user, and shows why. Resolves to whether one was given. One dialog at a time. */
export function askForToken(why) {
  byId("token-why").textContent = why;
  if (tokens.open) return Promise.resolve(false);
  byId("token-input").value = "";
  byId("token-forget").hidden = token.get() === "";
  tokens.returnValue = "";
  tokens.showModal();
  return new Promise((resolve) => tokens.addEventListener("close", () => resolve(tokens.returnValue === "used"), { once: true }));
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = byId("token-input").value.trim();
  byId("token-input").value = "";
  if (given) token.set(given);
  tokens.close(given ? "used" : "");
});
byId("token-cancel").addEventListener("click", () => tokens.close(""));
byId("token-forget").addEventListener("click", () => {
  token.set("");
  tokens.close("used");
});

// Acting

/** Performs an action. If the token is missing or not an operator's, asks for one and retries once. Throws Refused. */
export async function acted(action) {
  try {
    return await action();
  } catch (error) {
    if (!(error instanceof Refused) || ![401, 403].includes(error.status)) throw error;
    if (!(await askForToken(`This is for operators: ${error.message}`))) throw error;
    return action();
  }
}

/** Asks in a dialog. Resolves to the entries of its fields, or null. */
export function asked({ title, lines, fields = [], yes }) {
  const error = h("p", { class: "failed", role: "alert" });
  const form = h("form", { method: "dialog" },
    h("h2", { id: "confirm-title" }, title), ...lines.map((line) => h("p", {}, line)), ...fields, error,
    h("div", { class: "buttons" }, h("button", { type: "button", class: "quiet", onclick: () => question.close("") }, "Cancel"), h("button", { type: "submit", class: "danger" }, yes)));
  let entries = null;
  form.addEventListener("submit", () => (entries = Object.fromEntries(new FormData(form))));
  question.replaceChildren(form);
  question.returnValue = "";
  question.showModal();
  return new Promise((resolve) => question.addEventListener("close", () => resolve(entries), { once: true }));
}

export async function pauseOrResume(name, isPaused, { say, changed }) {
  const verb = isPaused ? "resume" : "pause";
  const sure = isPaused || (await asked({
    title: `Pause ${named(name)}?`,
    lines: ["Every host finishes or drops its current batch and releases its leases of this pipeline. Nothing is lost. The lag keeps growing until the pipeline is resumed."],
    yes: "Pause",
  }));
  if (!sure) return;
  try {
    await acted(() => operate("POST", `/api/pipelines/${segment(name)}/${verb}`));
    say(`${named(name)}: ${verb}d`);
  } catch (error) {
    say(`${named(name)} could not be ${verb}d: ${error.message}`, true);
  }
  changed();
}

// One lease

/** around: {hosts: () => names, failure: (key) => failure or undefined, changed: () => void} */
export async function openLease({ pipeline, partition }, around) {
  const outcome = h("p", { class: "outcome", role: "status" });
  const body = h("div", {}, h("p", { class: "note" }, "Reading …"));
  const close = h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(h("div", { class: "heading" }, h("h2", { id: "lease-title" }, bdi(partition), " ", h("span", { class: "note" }, "of ", bdi(pipeline))), close), body, outcome);
  if (!dialog.open) dialog.showModal();
  const show = (lease) => {
    const hadFocus = body.contains(document.activeElement);
    body.replaceChildren(facts(lease, around.failure(`${pipeline}/${partition}`)), actions(lease, (doing, action) => perform(lease, doing, action), around));
    if (hadFocus) close.focus(); // the pressed button no longer exists
  };
  const perform = async (lease, doing, action) => {
    outcome.className = "outcome";
    outcome.textContent = `${doing} …`;
    try {
      const { changed, after, etag } = await acted(action);
      outcome.textContent = changed ? `${doing}: done.` : `${doing}: nothing had to be done.`;
      show({ ...lease, ...after, etag: etag ?? lease.etag }); // newer than the state that the next answer may show
    } catch (error) {
      outcome.className = "outcome failed";
      outcome.textContent = `${doing}: ${error.message}`;
      if (error.status === 412) await fetchLease(pipeline, partition).then(show, () => {});
    }
    around.changed();
  };
  try {
    show(await fetchLease(pipeline, partition));
  } catch (error) {
    body.replaceChildren(h("p", { class: "failed" }, named(error.message)));
  }
}

function facts(lease, failure) {
  const owner = lease.owner === null ? "no owner" : h("span", {}, swatch(lease.owner)[0], bdi(lease.owner));
  const rows = [
    ["State", lease.state === "owned" ? "owned" : standing(lease)],
    ["Owner", owner],
    ["Epoch", count(lease.epoch)],
    ["Generation", count(lease.generation)],
    ["Tick", count(lease.tick)],
    ["Position", lease.continuation === null ? "the feed's beginning" : h("code", {}, named(lease.continuation))],
    ["Sink's state", lease.sink_state ? h("code", {}, named(lease.sink_state)) : "none"],
    ["Parents", names(lease.parents)],
    ["Children", names(lease.children.map((child) => child.partition))],
  ];
  if (failure) rows.unshift(["Failing", h("span", { class: "failed" }, named(failure.error))]);
  return h("dl", { class: "facts" }, ...rows.filter(([, value]) => value !== null).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

const names = (partitions) => (partitions.length ? h("span", {}, ...partitions.flatMap((name, i) => [i ? ", " : "", bdi(name)])) : null);

function actions(lease, perform, around) {
  if (lease.state === "closed" && lease.children.length) return h("p", { class: "note" }, "Its partition has ended; there is nothing to do.");
  const { pipeline, partition } = lease;
  const move = h("button", { type: "button", class: "quiet", onclick: () => reset(lease, perform) }, "Reset position …");
  if (lease.state === "closed") return h("div", { class: "actions" }, h("p", { class: "note" }, "An operator closed it: no host reads its partition. A reset opens it."), h("div", { class: "action" }, move));
  const others = around.hosts().filter((name) => name !== lease.owner);
  const to = h("select", {}, ...others.map((name) => h("option", { value: name }, named(name))));
  const handOver = () => perform(`Hand over to ${named(to.value)}`, () => operate("POST", leasePath(pipeline, partition, "handoff"), { to: to.value }));
  const release = async () => {
    const lines = [`${named(lease.owner ?? "The owner")} loses the lease at its next write, and the next owner may have to repeat its batch. To avoid that, hand the lease over.`];
    if (await asked({ title: `Release ${named(partition)}?`, lines, yes: "Release" })) await perform("Release", () => operate("POST", leasePath(pipeline, partition, "release")));
  };
  const close = async () => {
    const lines = ["No host reads its partition any more, and lag does not count it: a processed file may then be archived. As long as events are left, this is refused."];
    if (await asked({ title: `Close the lease of ${named(partition)}?`, lines, yes: "Close the lease" })) await perform("Close the lease", () => operate("POST", leasePath(pipeline, partition, "close")));
  };
  return h("div", { class: "actions" },
    h("h3", {}, "Operate"),
    others.length
      ? h("div", { class: "action" }, h("label", {}, "To ", to), h("button", { type: "button", class: "quiet", onclick: handOver }, "Hand over"))
      : h("p", { class: "note" }, "No other live host could take it over."),
    h("div", { class: "action" },
      h("button", { type: "button", class: "quiet", disabled: lease.owner === null, onclick: release }, "Release …"),
      h("button", { type: "button", class: "quiet", onclick: close }, "Close lease …"),
      move));
}

/** Resets under the ETag that was shown: a lease that has changed meanwhile is not reset. */
async function reset(lease, perform) {
  const { pipeline, partition, etag } = lease;
  const field = h("label", { class: "field" }, "New position ", h("input", { name: "to", required: true, autocomplete: "off", spellcheck: "false", list: "positions", placeholder: "earliest, latest, a time, or a position" }));
  const known = h("datalist", { id: "positions" }, h("option", { value: "earliest" }), h("option", { value: "latest" }));
  const sure = h("label", { class: "check" }, h("input", { type: "checkbox", required: true }), " I know that events between the two positions are delivered again or skipped");
  const entries = await asked({
    title: `Reset ${named(partition)} of ${named(pipeline)}?`,
    lines: [
      `Its position is ${named(lease.continuation ?? "the feed's beginning")}, in generation ${lease.generation}. A new generation ignores the sink's position.`,
      lease.owner === null ? "No host works on it." : "Its owner writes the lease every few seconds, and each write makes this reset fail: pause the pipeline first.",
    ],
    fields: [field, known, sure],
    yes: "Reset",
  });
  if (entries) await perform(`Reset to ${named(entries.to)}`, () => operate("PUT", leasePath(pipeline, partition, "continuation"), { to: entries.to.trim() }, { "if-match": etag }));
}
