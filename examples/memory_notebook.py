"""A server that remembers: memories are kept in a file, or in PostgreSQL, and found by what they say.

portico serve examples/memory_notebook.py
"""

import os

from portico import Server
from portico_services.memory import Memory

server = Server("notebook", version="1.0.0", instructions="Recall before you ask; capture what should stay known.")
server.add(Memory(os.environ.get("NOTEBOOK", ":memory:"), secrets="redact"))

if __name__ == "__main__":
    server.run()
