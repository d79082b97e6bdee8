"""An upstream that returns the arguments of a call, laid out with whitespace of its own choosing.

    python echo_upstream.py stdio|json|events 2025-06-18|2026-07-28

It shares no code with Portico. Over stdio it reads as the most eager readers do: whatever any reader takes for a line
break ends a message. Each result says how many messages have arrived, and how many of them were not JSON-RPC.
"""

from __future__ import annotations

import http.server
import json
import random
import sys
from typing import Any

from echo_upstream_layout import lay_out

KIND, VERSION = sys.argv[1], sys.argv[2]
MODERN = VERSION == "2026-07-28"
COMPLETE: dict[str, Any] = {"resultType": "complete"} if MODERN else {}
CACHED: dict[str, Any] = {**COMPLETE, "ttlMs": 0, "cacheScope": "private"} if MODERN else {}
received = {"calls": 0, "invalid": 0}


def result_of(message: dict[str, Any]) -> dict[str, Any] | None:
    method, params = message["method"], message.get("params", {})
    if method == "server/discover" and MODERN:
        return {**CACHED, "supportedVersions": [VERSION], "capabilities": {"tools": {}}}
    if method == "initialize" and not MODERN:
        info = {"name": "echo", "version": "1"}
        return {"protocolVersion": VERSION, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {**CACHED, "tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        received["calls"] += 1
        said = {"arguments": params.get("arguments"), **received}
        # ASCII, so that what is compared does not itself depend on how strings are written.
        content = [{"type": "text", "text": json.dumps(said)}]
        return {**COMPLETE, "content": content, "isError": False, "_meta": {"example.com/echo": said["arguments"]}}
    return None


def answer(message: Any, blanks: str) -> str | None:
    if not isinstance(message, dict) or "method" not in message or message.get("jsonrpc") != "2.0":
        received["invalid"] += 1
        return None
    if "id" not in message:
        return None
    result = result_of(message)
    error = {"result": result} if result is not None else {"error": {"code": -32601, "message": "Method not found"}}
    return lay_out({"jsonrpc": "2.0", "id": message["id"], **error}, random.Random(received["calls"]), blanks)


def serve_stdio() -> None:
    sys.stdin.reconfigure(encoding="utf-8", newline="")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8", newline="")  # type: ignore[union-attr]
    for chunk in sys.stdin:
        for line in chunk.splitlines():
            if not line.strip():
                continue
            try:
                reply = answer(json.loads(line), " \t\r")
            except ValueError:
                received["invalid"] += 1
                continue
            if reply is not None:
                sys.stdout.write(reply + "\n")
                sys.stdout.flush()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send(405, "text/plain", "")

    do_DELETE = do_GET

    def do_POST(self) -> None:
        reply = answer(json.loads(self.rfile.read(int(self.headers["content-length"]))), " \t\r\n")
        if reply is None:
            self.send(202, "text/plain", "")
        elif KIND == "events":
            # Each line of the message is a data line; a lone CR ends one as well.
            lines = reply.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            self.send(200, "text/event-stream", "".join(f"data: {line}\n" for line in lines) + "\n")
        else:
            self.send(200, "application/json", reply)


if __name__ == "__main__":
    if KIND == "stdio":
        serve_stdio()
    else:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        print(server.server_port, flush=True)
        server.serve_forever()
