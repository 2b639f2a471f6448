// @vercel/cosmosdb-server without TLS, since its certificate has run out; prints its endpoint as a line of JSON once it serves.
import { createHttpServer } from "@vercel/cosmosdb-server";

const server = createHttpServer({ keepAlive: true });
// Asked for a document that is not there, it answers 500 unless it is spared its own comparison of partition keys.
server.prependListener("request", (request) => {
  if (request.method === "GET") request.headers["x-ms-documentdb-query-enablecrosspartition"] = "true";
});
server.listen(0, "127.0.0.1", () => {
  console.log(JSON.stringify({ endpoint: `http://127.0.0.1:${server.address().port}/` }));
});
