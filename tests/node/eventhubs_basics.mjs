// @azure/event-hubs on a namespace: what everybody does. Arguments: connection string, hub, another one for TLS (or "").
// Prints what it saw.
import { earliestEventPosition, EventHubConsumerClient, EventHubProducerClient } from "@azure/event-hubs";

const [connectionString, hub, customEndpointAddress] = process.argv.slice(2);
const options = customEndpointAddress ? { customEndpointAddress } : {};
const retryOptions = { maxRetries: 0 };
const producer = new EventHubProducerClient(connectionString, hub, { ...options, retryOptions });
const properties = await producer.getEventHubProperties();
const batch = await producer.createBatch({ partitionId: "0" });
for (let n = 0; n < 200; n++) batch.tryAdd({ body: { n } });
await producer.sendBatch(batch);
await producer.sendBatch([{ body: "large".repeat(100_000) }], { partitionId: "0" });
await producer.sendBatch([{ body: "alone", properties: { text: "é", number: 7, truth: true } }], { partitionId: "1" });
for (let n = 0; n < 3; n++) await producer.sendBatch([{ body: n }], { partitionKey: "a key" });
const partition = await producer.getPartitionProperties("0");

// The first `count` events of a partition, or the error that comes instead.
async function received(partitionId, count, startPosition = earliestEventPosition, more = {}, group = "$Default") {
  const consumer = new EventHubConsumerClient(group, connectionString, hub, { ...options, retryOptions });
  const events = [];
  const outcome = await new Promise((resolve) => {
    const subscription = consumer.subscribe(
      partitionId,
      {
        processEvents: async (some) => {
          events.push(...some);
          if (events.length >= count) resolve({ subscription, events: events.slice(0, count) });
        },
        processError: async (error) => resolve({ subscription, error }),
      },
      { startPosition, maxBatchSize: 50, maxWaitTimeInSeconds: 1, ...more },
    );
  });
  await outcome.subscription.close();
  await consumer.close();
  return outcome;
}

const all = (await received("0", 201)).events;
const later = (await received("0", 1, { sequenceNumber: 198, isInclusive: true })).events[0];
const byOffset = (await received("0", 1, { offset: all[99].offset })).events[0];
const one = (await received("1", 1, earliestEventPosition, { ownerLevel: 3, trackLastEnqueuedEventProperties: true })).events[0];
const nobody = (await received("0", 1, earliestEventPosition, {}, "nobody")).error;
const wrongKey = connectionString.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=d3Jvbmc=");
const stranger = new EventHubProducerClient(wrongKey, hub, { ...options, retryOptions });
const refused = await stranger.sendBatch([{ body: "x" }]).catch((error) => error.code);
await Promise.allSettled([producer.close(), stranger.close()]);

console.log(
  JSON.stringify({
    hub: [properties.name, properties.partitionIds],
    partition: [partition.lastEnqueuedSequenceNumber, partition.isEmpty, partition.beginningSequenceNumber],
    numbers: all.map((event) => event.sequenceNumber),
    bodies: [all[0].body.n, all[199].body.n, all[200].body.length],
    later: later.body.n,
    byOffset: byOffset.body.n,
    one: [one.body, one.properties, one.sequenceNumber],
    nobody: nobody?.code,
    refused,
  }),
);
process.exit(0);
