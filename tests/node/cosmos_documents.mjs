// @azure/cosmos on an account: documents, ETags, queries, batches. Arguments: endpoint, key. Prints what it saw.
import { BulkOperationType, CosmosClient, ErrorResponse } from "@azure/cosmos";

const [endpoint, key] = process.argv.slice(2);
const client = new CosmosClient({ endpoint, key });
const code = (error) => (error instanceof ErrorResponse ? error.code : `${error}`);
const refusal = (promise) => promise.then(() => null, code);

const { database } = await client.databases.createIfNotExists({ id: "bank" });
const partitionKey = { paths: ["/account"], version: 2 };
const { container } = await database.containers.createIfNotExists({ id: "tx", partitionKey });
for (let n = 0; n < 20; n++) await container.items.create({ id: `d${n}`, account: `a${n}`, n });

const item = container.item("d3", "a3");
const { resource: first } = await item.read();
const ifFirst = { accessCondition: { type: "IfMatch", condition: first._etag } };
await item.replace({ ...first, n: 33 }, ifFirst);
const stale = await refusal(item.replace({ ...first, n: 34 }, ifFirst));
const exists = await refusal(container.items.create({ id: "d3", account: "a3" }));
await item.patch([{ op: "incr", path: "/n", value: 1 }]);
const { resource: patched } = await item.read();
await container.items.upsert({ id: "d4", account: "a4", n: 44 });
await container.item("d5", "a5").delete();
const { statusCode: gone } = await container.item("d5", "a5").read();

const batch = await container.items.batch(
  ["b1", "b2"].map((id) => ({ operationType: BulkOperationType.Create, resourceBody: { id, account: "b" } })),
  "b",
);
const broken = await container.items.batch(
  [
    { operationType: BulkOperationType.Delete, id: "b1" },
    { operationType: BulkOperationType.Create, resourceBody: { id: "b2", account: "b" } },
  ],
  "b",
);
const bulk = await container.items.executeBulkOperations([
  { operationType: BulkOperationType.Upsert, partitionKey: "x", resourceBody: { id: "x1", account: "x" } },
  { operationType: BulkOperationType.Delete, partitionKey: "a6", id: "d6" },
]);

const all = async (query, options) => (await container.items.query(query, options).fetchAll()).resources;
const parameters = [{ name: "@prefix", value: "d1" }];
console.log(
  JSON.stringify({
    stale,
    exists,
    patched: patched.n,
    gone,
    batch: batch.result.map((one) => one.statusCode),
    broken: broken.result.map((one) => one.statusCode),
    bulk: bulk.map((one) => one.response?.statusCode),
    ranges: (await container.getFeedRanges()).length,
    prefixed: (await all({ query: "SELECT * FROM c WHERE STARTSWITH(c.id, @prefix)", parameters }, { maxItemCount: 3 })).length,
    ordered: await all("SELECT c.id FROM c WHERE c.n > 16 ORDER BY c.n DESC"),
    counted: await all("SELECT VALUE COUNT(1) FROM c"),
    one: await all("SELECT VALUE c.n FROM c", { partitionKey: "a7" }),
    listed: (await container.items.readAll({ maxItemCount: 5 }).fetchAll()).resources.length,
    wrongKey: await refusal(new CosmosClient({ endpoint, key: "d3Jvbmc=" }).database("bank").read()),
  }),
);
