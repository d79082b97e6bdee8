"""The FastMCP proxy, configured as documented: `python fast_proxy.py PORT FILE`, an mcp.json."""

import json
import sys
from pathlib import Path

from fastmcp.server import create_proxy

if __name__ == "__main__":
    port, file = sys.argv[1:]
    proxy = create_proxy(json.loads(Path(file).read_text(encoding="utf-8")))
    proxy.run(transport="http", host="127.0.0.1", port=int(port), path="/mcp", show_banner=False)
