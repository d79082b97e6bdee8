"""The HTTP API that the backend tool calls: always the same JSON. `backend_api.py PORT`."""

import asyncio
import sys

import uvloop

BODY = b'{"price": 12, "currency": "EUR"}'
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Api(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
        self.unread = b""

    def data_received(self, data):
        self.unread += data
        while b"\r\n\r\n" in self.unread:
            _, _, self.unread = self.unread.partition(b"\r\n\r\n")
            self.transport.write(RESPONSE)


async def main():
    server = await asyncio.get_running_loop().create_server(Api, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


uvloop.run(main())
