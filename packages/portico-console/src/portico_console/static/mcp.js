// A client of the console's own server: MCP 2026-07-28, a POST for each request, JSON or events as the answer.

const ENDPOINT = "/console/mcp";
const KEY = "portico-console-key";
// Storage key of a login with a refresh token.
export const LOGIN = "portico-console-login";
const REVISION = "2026-07-28";
let last = 0;

/** An error with a message for the user. */
export class Refusal extends Error {
  constructor(text, { status, how, data } = {}) {
    super(text);
    Object.assign(this, { status, how, data });
  }
}

/** Exchange a one-time token in the URL for a key. It is removed from the URL first. */
export async function signIn(token) {
  const answer = await fetch("/console/login", {
    method: "POST", credentials: "same-origin", headers: { "content-type": "application/json" }, body: JSON.stringify({ token }),
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refusal(said.error ?? `The server responded with HTTP ${answer.status}.`, { status: answer.status });
  localStorage.setItem(KEY, said.key);
}

export async function signOut() {
  await fetch("/console/logout", { method: "POST", credentials: "same-origin", headers: { "portico-console": localStorage.getItem(KEY) ?? "" } });
  localStorage.removeItem(KEY);
  sessionStorage.removeItem(LOGIN);
}

let renewing;
/** Renew an expired token and return whether that succeeded. Concurrent callers share one renewal. */
const renewed = () => (renewing ??= renewLogin().catch(() => false).finally(() => { renewing = undefined; }));

async function renewLogin() {
  if (!sessionStorage.getItem(LOGIN)) return false;
  const { renew } = await import("./oauth.js");
  await signIn(await renew());
  return true;
}

/** Call a tool of the console and return its structured result. `notice(method, params)` receives notifications. */
export async function call(name, args = {}, { signal, notice } = {}) {
  const id = ++last;
  const params = {
    name, arguments: args,
    _meta: {
      "io.modelcontextprotocol/protocolVersion": REVISION,
      "io.modelcontextprotocol/clientInfo": { name: "portico-console", version: "1" },
      "io.modelcontextprotocol/clientCapabilities": {},
      ...(notice ? { "io.modelcontextprotocol/logLevel": "debug", progressToken: id } : {}),
    },
  };
  const answer = await post(JSON.stringify({ jsonrpc: "2.0", id, method: "tools/call", params }), name, notice, signal);
  const message = answer.headers.get("content-type")?.startsWith("text/event-stream") ? await readEvents(answer, notice) : await readJson(answer);
  if (message?.error) {
    const { message: text, data } = message.error;
    throw new Refusal(text ?? "The request failed.", { status: answer.status, how: data?.how, data });
  }
  if (!message?.result) throw new Refusal(`The server responded with HTTP ${answer.status} and an unreadable body.`, { status: answer.status });
  if (message.result.isError) throw new Refusal(message.result.content?.[0]?.text ?? "The call failed.");
  return message.result.structuredContent ?? {};
}

async function post(body, name, streaming, signal, again = true) {
  const headers = {
    "content-type": "application/json", "mcp-protocol-version": REVISION, "mcp-method": "tools/call", "mcp-name": name,
    accept: streaming ? "text/event-stream, application/json" : "application/json, text/event-stream",
    "portico-console": localStorage.getItem(KEY) ?? "",
  };
  try {
    const answer = await fetch(ENDPOINT, { method: "POST", credentials: "same-origin", headers, body, signal });
    return answer.status === 401 && again && await renewed() ? post(body, name, streaming, signal, false) : answer;
  } catch (why) {
    if (why.name === "AbortError") throw why;
    throw new Refusal("Server unreachable.", { status: 0 });
  }
}

async function readJson(answer) {
  try {
    return await answer.json();
  } catch {
    throw new Refusal(`The server responded with HTTP ${answer.status}.`, { status: answer.status });
  }
}

/** Read the events of a response: forward notifications and return the response. */
async function readEvents(answer, notice) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [];
  let response;
  const take = (event) => {
    const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n");
    if (!data) return;
    const message = JSON.parse(data);
    if (message.method) notice?.(message.method, message.params ?? {});
    else response = message;
  };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    // A large event arrives in many chunks, which are joined once at its end.
    const piece = value.replaceAll("\r\n", "\n");
    pieces.push(piece);
    if (!piece.includes("\n\n") && !(piece.startsWith("\n") && pieces.length > 1)) continue;
    const events = pieces.join("").split("\n\n");
    pieces = [events.pop()];
    events.forEach(take);
  }
  const rest = pieces.join("");
  if (rest.trim()) take(rest);
  return response;
}
