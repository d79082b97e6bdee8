"""A planning server: work items in SQLite or PostgreSQL, shared by any number of assistants.

portico serve examples/tasks_planner.py
"""

import os

from portico import Server
from portico_services.workitems import Tasks

server = Server(
    "planner", version="1.0.0", instructions="Plan with tasks. Claim the next task, and complete it with its result."
)
server.add(Tasks(os.environ.get("PLANNER", ":memory:")))

if __name__ == "__main__":
    server.run()
