"""Read-only access to the server's machine: event logs, files, registry, processes. Personal names are replaced.

portico serve examples/system_machine.py
"""

from pathlib import Path

from portico import Server
from portico_services.system import System

server = Server(
    "machine", version="1.0.0", instructions="Check logs, files, registry and processes before you conclude."
)
server.add(System(allowed_paths=[Path(__file__).parent]))

if __name__ == "__main__":
    server.run()
