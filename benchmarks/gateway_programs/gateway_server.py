"""The Portico gateway over HTTP; its upstreams come from an mcp.json.

python gateway_server.py PORT FILE [STORE]
"""

import json
import sys
from pathlib import Path

from portico_gateway import Gateway

if __name__ == "__main__":
    port, file, *store = sys.argv[1:]
    gateway = Gateway(json.loads(Path(file).read_text(encoding="utf-8")))
    gateway.store = store[0] if store else None
    gateway.run("http", host="127.0.0.1", port=int(port), show_banner=False)
