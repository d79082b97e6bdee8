// @modelcontextprotocol/sdk: the first TypeScript client, which most programs in use are built with.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
} from "@modelcontextprotocol/sdk/types.js";

import { converse } from "./conversation.mjs";

// It accepts older revisions, as its older releases did, but offers the newest alone. So the offer is changed on the way.
function offering(revision) {
  return (url, init) => {
    const message = init?.method === "POST" ? JSON.parse(init.body) : {};
    if (message.method !== "initialize") return fetch(url, init);
    message.params.protocolVersion = revision;
    return fetch(url, { ...init, body: JSON.stringify(message) });
  };
}

await converse(async (where, revision, person, heard) => {
  const capabilities = { sampling: {}, elicitation: {}, roots: {} };
  const client = new Client({ name: "sdk", version: "1" }, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, ({ params }) => person.elicit(params));
  client.setRequestHandler(CreateMessageRequestSchema, ({ params }) => person.sample(params));
  client.setRequestHandler(ListRootsRequestSchema, () => person.roots());
  client.fallbackNotificationHandler = async ({ method, params }) => heard.add(method, params);
  const http = where instanceof URL;
  const transport = http
    ? new StreamableHTTPClientTransport(where, { fetch: offering(revision) })
    : new StdioClientTransport({ command: where[0], args: where.slice(1) });
  let spoken = null;
  transport.setProtocolVersion = ((set) => (version) => {
    spoken = version;
    set?.(version);
  })(transport.setProtocolVersion?.bind(transport));
  await client.connect(transport);
  return {
    client,
    revision: () => spoken,
    call: (name, args = {}, options = {}, _meta = undefined) =>
      client.callTool({ name, arguments: args, _meta }, undefined, options),
    end: http && (() => transport.terminateSession()),
  };
});
