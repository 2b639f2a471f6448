// Requests to the API of the host that served this page. The token is kept only in this tab (sessionStorage), and sent as a header.

const KEY = "leasehold.token";
const TIMEOUT_MS = 15000;
const SILENCE_MS = 40000; // a stream sends a comment at least every 15 s
const FIRST_MS = 8000; // a stream without data by then is held by a proxy that buffers whole responses
const PAGE = 1000;
const answers = new Map(); // path -> {etag, body}, for conditional requests

/** The API refused a request. status: HTTP's; 0: it did not answer at all. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set(value) {
    answers.clear();
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  },
};

export async function get(path) {
  const known = answers.get(path);
  const answer = await asked(path, { headers: known ? { "if-none-match": known.etag } : {} });
  if (answer.status === 304) return known.body;
  const body = await answer.json();
  const etag = answer.headers.get("etag");
  if (etag) answers.set(path, { etag, body });
  else answers.delete(path);
  return body;
}

/** One lease, with the ETag of its document, which a reset must send. */
export async function lease(pipeline, partition) {
  const answer = await asked(leasePath(pipeline, partition), {});
  return { ...(await answer.json()), etag: answer.headers.get("etag") };
}

/** All pages. A lease that moves between two pages appears twice or not at all; the next round corrects it. */
export async function leases() {
  const items = [];
  let cursor = null;
  do {
    const after = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
    const page = await get(`/api/leases?limit=${PAGE}${after}`);
    for (const item of page.items) items.push(item);
    cursor = page.next;
  } while (cursor !== null);
  return items;
}

/** Server-sent events, each [name, data], until the stream ends. There are none if the host sends none, or if they do not arrive. */
export async function* events(signal) {
  const ended = new AbortController();
  let timer = setTimeout(() => ended.abort(), FIRST_MS);
  let isTold = false;
  try {
    const answer = await asked("/api/events", { signal: AbortSignal.any([signal, ended.signal]) });
    for await (const event of parsed(answer.body.pipeThrough(new TextDecoderStream()))) {
      isTold = true;
      clearTimeout(timer);
      timer = setTimeout(() => ended.abort(), SILENCE_MS);
      yield event;
    }
  } catch (error) {
    if (signal.aborted || (ended.signal.aborted && !isTold)) return;
    if (error instanceof Refused && error.status !== 401) return; // the next request, page by page, fails with the reason
    throw error instanceof Refused ? error : new Refused(0, "the connection ended");
  } finally {
    clearTimeout(timer);
    ended.abort();
  }
}

async function* parsed(stream) {
  const reader = stream.getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = new Map(part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]));
      yield fields.has("data") ? [fields.get("event"), JSON.parse(fields.get("data"))] : ["comment", null];
    }
  }
}

/** An operator's action. Resolves to the answer's body, with the ETag that the lease has now; rejects with Refused. */
export async function operate(method, path, body = {}, headers = {}) {
  const answer = await asked(path, {
    method,
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
  return { ...(await answer.json()), etag: answer.headers.get("etag") };
}

export const leasePath = (pipeline, partition, action = "") =>
  `/api/leases/${segment(pipeline)}/${segment(partition)}${action && `/${action}`}`;
export const segment = (name) => encodeURIComponent(name);

async function asked(path, options) {
  const sent = token.get();
  const headers = { ...options.headers, ...(sent ? { authorization: `Bearer ${sent}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error", signal: options.signal ?? AbortSignal.timeout(TIMEOUT_MS) });
  } catch (error) {
    throw new Refused(0, error.name === "TimeoutError" ? `no answer within ${TIMEOUT_MS / 1000} s` : "the connection failed");
  }
  if (answer.ok || answer.status === 304) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, problem.detail ?? `it answered with status ${answer.status}`);
}
