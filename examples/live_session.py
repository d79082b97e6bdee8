"""Live Python: code runs in a sandbox, and its variables persist between calls.

portico serve examples/live_session.py
"""

from portico import Server
from portico_services.livepython import LivePython

server = Server("live", version="1.0.0", instructions="Evaluate Python. Variables persist between calls.")
server.add(LivePython(timeout=5, memory_bytes=512 * 2**20, max_sessions=8))

if __name__ == "__main__":
    server.run()
