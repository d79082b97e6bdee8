"""The machine that the server runs on: event logs, files, registry, processes. It reads, and names nobody.

portico serve examples/system_machine.py
"""

from pathlib import Path

from portico import Server
from portico_services.system import System

server = Server("machine", version="1.0.0", instructions="Look before you conclude: logs, files, registry, processes.")
server.add(System(allowed_paths=[Path(__file__).parent]))

if __name__ == "__main__":
    server.run()
