// @vercel/cosmosdb-server on any port of this machine; prints its endpoint as a line of JSON once it serves.
import { createHttpsServer } from "@vercel/cosmosdb-server";

const server = createHttpsServer({ keepAlive: true });
// Asked for a document that is not there, it answers 500 unless it is spared its own comparison of partition keys.
server.prependListener("request", (request) => {
  if (request.method === "GET") request.headers["x-ms-documentdb-query-enablecrosspartition"] = "true";
});
server.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ endpoint: `https://127.0.0.1:${server.address().port}/` }));
});
