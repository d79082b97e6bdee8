// The benchmark's server on the TypeScript SDK: its handler on node's http, behind the guards its documentation asks
// for. The factory makes a server for each request, which is how the SDK serves HTTP. peers.py copies this file to
// where the packages are, because Node looks for them beside the file.

import { createServer } from 'node:http';
import { localhostHostValidation, localhostOriginValidation, toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, McpServer } from '@modelcontextprotocol/server';
import * as z from 'zod/v4';

const input = z.object({ a: z.number().int(), b: z.number().int() });
const output = z.object({ result: z.number().int() });

function build() {
    const server = new McpServer({ name: 'bench', version: '1.0.0' });
    server.registerTool(
        'add_async',
        { description: 'Add two numbers on the loop.', inputSchema: input, outputSchema: output },
        async ({ a, b }) => ({ content: [{ type: 'text', text: `${a + b}` }], structuredContent: { result: a + b } })
    );
    return server;
}

const handle = toNodeHandler(createMcpHandler(build, { responseMode: 'json' }));
const validateHost = localhostHostValidation();
const validateOrigin = localhostOriginValidation();

createServer((request, response) => {
    if (validateHost(request, response) && validateOrigin(request, response)) handle(request, response);
}).listen(Number(process.argv[2]), '127.0.0.1');
