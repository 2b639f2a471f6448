// @azure/cosmos on an account: the change feed in both modes, by range and whole, with splits in its midst.
// Arguments: endpoint, key, control. Prints what it saw.
import { ChangeFeedMode, ChangeFeedStartFrom, CosmosClient, StatusCodes } from "@azure/cosmos";

const [endpoint, key, control] = process.argv.slice(2);
const order = async (name, what) => (await fetch(control + name, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(what) })).json();
const client = new CosmosClient({ endpoint, key });
const { database } = await client.databases.createIfNotExists({ id: "bank" });
const partitionKey = { paths: ["/account"], version: 2 };
const { container } = await database.containers.createIfNotExists({ id: "tx", partitionKey });
const fill = async (prefix) => {
  for (let n = 0; n < 40; n++) await container.items.upsert({ id: `${prefix}${n}`, account: `a${n}`, n });
};
await fill("d");

// Until the whole has answered "not modified" throughout; `between` is called after each page with items.
async function drained(options, between = async () => {}) {
  const iterator = container.items.getChangeFeedIterator(options);
  const items = [];
  let continuation;
  for (let idle = 0, pages = 0; iterator.hasMoreResults && idle < 10; ) {
    const page = await iterator.readNext();
    continuation = page.continuationToken;
    if (page.statusCode === StatusCodes.NotModified) idle++;
    else {
      idle = 0;
      items.push(...page.result);
      await between(++pages);
    }
  }
  return { items, continuation };
}

const byRange = [];
for (const range of await container.getFeedRanges()) {
  const { items } = await drained({ changeFeedStartFrom: ChangeFeedStartFrom.Beginning(range), maxItemCount: 3 });
  byRange.push(items.map((item) => item._lsn));
}
const start = { changeFeedStartFrom: ChangeFeedStartFrom.Beginning(), maxItemCount: 3 };
const whole = await drained(start, async (pages) => {
  if (pages === 2) await order("split", { container: "tx", range_id: "0" });
  if (pages === 4) await order("split", { container: "tx", range_id: "2" });
});
await order("merge", { container: "tx", left: "4", right: "5" });
await container.items.upsert({ id: "d1", account: "a1", n: 2 });
await container.items.upsert({ id: "d1", account: "a1", n: 3 });
const later = await drained({ changeFeedStartFrom: ChangeFeedStartFrom.Continuation(whole.continuation) });

const changeFeedMode = ChangeFeedMode.AllVersionsAndDeletes;
await order("images", { container: "tx", previous: "all" });
const now = await drained({ changeFeedStartFrom: ChangeFeedStartFrom.Now(), changeFeedMode });
await container.items.create({ id: "new", account: "new", v: 1 });
await container.items.upsert({ id: "new", account: "new", v: 2 });
await container.item("new", "new").delete();
const full = await drained({ changeFeedStartFrom: ChangeFeedStartFrom.Continuation(now.continuation), changeFeedMode });

console.log(
  JSON.stringify({
    byRange,
    whole: whole.items.map((item) => item.id),
    later: later.items.map((item) => [item.id, item.n]),
    now: now.items.length,
    full: full.items.map((item) => [item.metadata.operationType, item.current?.v ?? null, item.previous?.v ?? null]),
  }),
);
