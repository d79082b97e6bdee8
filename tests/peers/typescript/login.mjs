// The official TypeScript clients log in, step up and renew:   node login.mjs URL v1|v2
// Writes {"visit": URL} for a page that a person has to see, and reads where that has led; then what its calls said.

import { createInterface } from "node:readline";

const [url, version] = process.argv.slice(2);
const from = {
  v1: () =>
    Promise.all([
      import("@modelcontextprotocol/sdk/client/index.js"),
      import("@modelcontextprotocol/sdk/client/streamableHttp.js"),
      import("@modelcontextprotocol/sdk/client/auth.js"),
    ]).then((modules) => Object.assign({}, ...modules)),
  v2: () => import("@modelcontextprotocol/client"),
};
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = await from[version]();

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
let tokens;
let kept;
let verifier;
let page;
const provider = {
  redirectUrl: "http://127.0.0.1:9/callback",
  clientMetadata: { client_name: "typescript", redirect_uris: ["http://127.0.0.1:9/callback"] },
  clientInformation: () => ({ client_id: "program" }),
  tokens: () => tokens,
  saveTokens: (given) => {
    kept = given;
    // The first client renews a token where it should get one with more scopes, if it has something to renew it with.
    tokens = version === "v1" ? { ...given, refresh_token: undefined } : given;
  },
  saveCodeVerifier: (given) => {
    verifier = given;
  },
  codeVerifier: () => verifier,
  redirectToAuthorization: (target) => {
    page = target;
  },
};

let transport;
async function connected() {
  const client = new Client({ name: "typescript", version: "1" });
  transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
  await client.connect(transport);
  return client;
}

// What needs a login is tried again after it.
async function loggedIn(work) {
  try {
    return await work();
  } catch (failure) {
    if (!(failure instanceof UnauthorizedError) && failure?.name !== "UnauthorizedError") throw failure;
  }
  say({ visit: String(page) });
  const back = new URL((await lines.next()).value);
  await transport.finishAuth(version === "v1" ? back.searchParams.get("code") : back.searchParams);
  return work();
}

const text = (result) => result.content[0].text;
let client = await loggedIn(connected);
say({ who: text(await client.callTool({ name: "who", arguments: {} })) });
const write = () => client.callTool({ name: "write", arguments: { text: "hello" } });
say({ write: text(await loggedIn(write)) });
say({ who: text(await client.callTool({ name: "who", arguments: {} })) });
await client.close();
// It has only what a refresh token can be had for.
tokens = { ...kept, access_token: "gone" };
client = await connected();
say({ renewed: text(await client.callTool({ name: "who", arguments: {} })) });
await client.close();
process.exit(0);
