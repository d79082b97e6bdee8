"""A memory server: memories are stored in SQLite or PostgreSQL and found by full-text search.

portico serve examples/memory_notebook.py
"""

import os

from portico import Server
from portico_services.memory import Memory

server = Server("notebook", version="1.0.0", instructions="Recall before you ask; capture facts worth keeping.")
server.add(Memory(os.environ.get("NOTEBOOK", ":memory:"), secrets="redact"))

if __name__ == "__main__":
    server.run()
