// @azure/event-hubs on a namespace: its idempotent producers, as its own tests make them.
// Arguments: connection string, hub, control. Prints what it saw.
import { EventHubBufferedProducerClient, EventHubProducerClient } from "@azure/event-hubs";

const [connectionString, hub, control] = process.argv.slice(2);
const order = async (name, what) => (await fetch(control + name, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(what) })).json();
const retryOptions = { maxRetries: 3, retryDelayInMs: 10, maxRetryDelayInMs: 100, timeoutInMs: 3000 };
const made = [];

function idempotent(partitionOptions) {
  const producer = new EventHubProducerClient(connectionString, hub, { retryOptions });
  producer._enableIdempotentRetries = true; // what EventHubBufferedProducerClient sets for `enableIdempotentRetries`
  producer._partitionOptions = partitionOptions; // what its options `partitionPublishingOptions` were
  made.push(producer);
  return producer;
}

async function sent(producer, partitionId, ...bodies) {
  const batch = await producer.createBatch({ partitionId });
  for (const body of bodies) batch.tryAdd({ body });
  await producer.sendBatch(batch);
  return batch.startingPublishedSequenceNumber ?? batch._startingPublishSequenceNumber;
}

const state = (producer, partitionId) => producer.getPartitionPublishingProperties(partitionId);
const last = (error) => [error, ...(error.errors ?? [])].at(-1); // of the tries
const said = (promise) => promise.then(() => "sent", (error) => last(error).code ?? last(error).message);

const chosen = idempotent();
const fresh = await state(chosen, "0");
await sent(chosen, "0", "a", "b", "c");
await chosen.sendBatch([{ body: "d" }], { partitionId: "0" });
const after = await state(chosen, "0");

// The batch was stored, and the acknowledgement or the connection goes. The producer notices when its time is up, and then
// numbers its events anew, by what a new link has told it: the retry has to be recognised.
await order("rules", { reply: "asked" });
await order("fault", { do: "lose_ack", of: "send", partition: "0", times: 1 });
await order("fault", { do: "cut_after", of: "send", partition: "3", times: 1 });
const lost = idempotent();
await Promise.all([sent(chosen, "0", "e", "f"), sent(lost, "3", "a", "b")]);
await Promise.all([sent(chosen, "0", "g"), sent(lost, "3", "c")]);

const asked = idempotent({ 1: { producerGroupId: 77, ownerLevel: 3, startingSequenceNumber: 41 } });
const granted = await state(asked, "1");
await sent(asked, "1", "x", "y");
const partly = idempotent({ 1: { producerGroupId: 77, ownerLevel: 3 } });
const resumed = await state(partly, "1");

const higher = idempotent({ 1: { producerGroupId: 77, ownerLevel: 4 } });
await sent(higher, "1", "z");
const fenced = await said(sent(asked, "1", "zombie"));
const lower = await said(sent(idempotent({ 1: { producerGroupId: 77, ownerLevel: 3 } }), "1", "zombie"));
const behind = await said(sent(idempotent({ 1: { producerGroupId: 77, ownerLevel: 4, startingSequenceNumber: 7 } }), "1", "gap"));
const negative = await said(sent(idempotent({ 1: { producerGroupId: 78, ownerLevel: -1 } }), "1", "negative"));

const buffered = new EventHubBufferedProducerClient(connectionString, hub, {
  enableIdempotentRetries: true,
  maxWaitTimeInMs: 50,
  onSendEventsErrorHandler: async (context) => console.error(context.error),
});
await buffered.enqueueEvents(Array.from({ length: 50 }, (_, n) => ({ body: n })), { partitionId: "2" });
await buffered.flush();
await Promise.allSettled([buffered.close(), ...made.map((producer) => producer.close())]);

const seen = (properties) => [properties.producerGroupId, properties.ownerLevel, properties.lastPublishedSequenceNumber];
console.log(JSON.stringify({ fresh: seen(fresh), after: seen(after), granted: seen(granted), resumed: seen(resumed), fenced, lower, behind, negative }));
process.exit(0);
