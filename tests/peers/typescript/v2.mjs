// @modelcontextprotocol/client: the second TypeScript client, of both eras.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

import { converse } from "./conversation.mjs";

await converse(async (where, revision, person, heard) => {
  const modern = revision >= "2026-07-28";
  const negotiation = modern
    ? { versionNegotiation: { mode: "auto" } }
    : { supportedProtocolVersions: [revision], versionNegotiation: { mode: "legacy" } };
  const capabilities = { sampling: {}, elicitation: { form: {} }, roots: {} };
  const client = new Client({ name: "client", version: "2" }, { capabilities, ...negotiation });
  client.setRequestHandler("elicitation/create", ({ params }) => person.elicit(params));
  client.setRequestHandler("sampling/createMessage", ({ params }) => person.sample(params));
  client.setRequestHandler("roots/list", () => person.roots());
  client.fallbackNotificationHandler = async ({ method, params }) => heard.add(method, params);
  const http = where instanceof URL;
  const transport = http
    ? new StreamableHTTPClientTransport(where)
    : new StdioClientTransport({ command: where[0], args: where.slice(1) });
  await client.connect(transport);
  return {
    client,
    revision: () => client.getNegotiatedProtocolVersion(),
    call: (name, args = {}, options = {}, _meta = undefined) =>
      client.callTool({ name, arguments: args, ...(_meta && { _meta }) }, options),
    end: http && !modern && (() => transport.terminateSession()),
  };
});
