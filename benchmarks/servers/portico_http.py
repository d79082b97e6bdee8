"""The benchmark's server on Portico's own listener."""

import sys

from portico_server import build

if __name__ == "__main__":
    build().run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
