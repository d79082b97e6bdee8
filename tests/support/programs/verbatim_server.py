"""A server that sends the contents of a file: `python verbatim_server.py FOLDER [old]`.

Each file of the folder is a result; the tool's argument names it. `old` shakes hands at 2025-11-25.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER, OLD = Path(sys.argv[1]), "old" in sys.argv


def answer(message: dict[str, object], result: str) -> None:
    sys.stdout.write('{{"jsonrpc":"2.0","id":{},"result":{}}}\n'.format(json.dumps(message["id"]), result))
    sys.stdout.flush()


for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    if "id" not in message:
        continue
    if method == "server/discover" and not OLD:
        answer(
            message,
            '{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,'
            '"cacheScope":"private"}',
        )
    elif method == "initialize":
        info = '{"name":"faithful","version":"1"}'
        answer(message, f'{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{info}}}')
    elif method == "tools/list":
        hints = "" if OLD else '"resultType":"complete","ttlMs":0,"cacheScope":"private",'
        answer(message, '{{{}"tools":{}}}'.format(hints, (FOLDER / "tools").read_text()))
    elif method == "tools/call":
        answer(message, (FOLDER / message["params"]["arguments"]["file"]).read_text())
    else:
        error = '{"code":-32601,"message":"Method not found"}'
        sys.stdout.write('{{"jsonrpc":"2.0","id":{},"error":{}}}\n'.format(json.dumps(message["id"]), error))
        sys.stdout.flush()
