// @azure/storage-blob on an account: what most clients do. Argument: connection string. Prints what it saw.
import { BlobSASPermissions, BlobServiceClient } from "@azure/storage-blob";

const service = BlobServiceClient.fromConnectionString(process.argv[2], { retryOptions: { maxTries: 1 } });
const container = service.getContainerClient(`node-${process.pid}`);
await container.create({ metadata: { owner: "node" } });
const status = async (call) => {
  try {
    await call();
    return 0;
  } catch (error) {
    return `${error.statusCode} ${error.code}`;
  }
};
const text = async (response) => new Response(await response.blobBody ?? response.readableStreamBody).text();

const first = container.getBlockBlobClient("folder/a file é");
const put = await first.upload("hello", 5, { metadata: { n: "1" }, blobHTTPHeaders: { blobContentType: "text/plain" } });
const again = await status(() => first.upload("other", 5, { conditions: { ifNoneMatch: "*" } }));
const stale = await status(() => first.upload("other", 5, { conditions: { ifMatch: '"0x1"' } }));
await first.setMetadata({ n: "2" }, { conditions: { ifMatch: put.etag } });
const properties = await first.getProperties();

const large = container.getBlockBlobClient("large");
const id = (n) => Buffer.from(String(n).padStart(4, "0")).toString("base64");
for (const n of [2, 1]) await large.stageBlock(id(n), String(n).repeat(1000), 1000);
const before = await large.exists();
await large.commitBlockList([id(1), id(2)]);
const range = await text(await large.download(998, 4));
const blocks = (await large.getBlockList("all")).committedBlocks.map((block) => block.size);
const beyond = await status(() => large.download(5000, 1));

const log = container.getAppendBlobClient("log");
await log.create();
await log.appendBlock("one ", 4, { conditions: { appendPosition: 0 } });
const raced = await status(() => log.appendBlock("two ", 4, { conditions: { appendPosition: 0 } }));
await log.appendBlock("two ", 4);

const lease = first.getBlobLeaseClient();
const { leaseId } = await lease.acquireLease(15);
const leased = await status(() => first.upload("other", 5));
const taken = await status(() => first.getBlobLeaseClient().acquireLease(15));
await first.upload("again", 5, { conditions: { leaseId } });
const renewed = (await lease.renewLease()).leaseId === leaseId;
await lease.breakLease(0);
await first.upload("free", 4);

const listed = [];
for await (const blob of container.listBlobsFlat({ includeMetadata: true })) listed.push([blob.name, blob.properties.contentLength]);
const pages = [];
for await (const page of container.listBlobsByHierarchy("/").byPage({ maxPageSize: 1 }))
  pages.push([...(page.segment.blobPrefixes ?? []), ...page.segment.blobItems].map((one) => one.name));

const expiresOn = new Date(Date.now() + 60_000);
const url = await log.generateSasUrl({ permissions: BlobSASPermissions.parse("r"), expiresOn });
const shared = await (await fetch(url)).text();
const denied = (await fetch(url, { method: "DELETE" })).status;
const copied = container.getBlockBlobClient("copy");
await (await copied.beginCopyFromURL(first.url)).pollUntilDone();
const names = [];
for await (const one of service.listContainers({ prefix: container.containerName })) names.push(one.name === container.containerName);

console.log(JSON.stringify({
  again, stale, beyond, raced, leased, taken, renewed, before, range, blocks, listed, pages, shared, denied, names,
  metadata: properties.metadata, type: properties.contentType, log: await text(await log.download()),
  copy: await text(await copied.download()), missing: await container.getBlobClient("none").exists(),
  deleted: await status(() => large.delete()), gone: await status(() => large.download()),
  whole: await status(() => container.delete()), noContainer: await status(() => first.getProperties()),
}));
