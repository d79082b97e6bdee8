"""A server to plan with: work items in a file or in PostgreSQL, for any number of assistants.

portico serve examples/tasks_planner.py
"""

import os

from portico import Server
from portico_services.workitems import Tasks

server = Server("planner", version="1.0.0", instructions="Plan with tasks. Take what is next, and say what came of it.")
server.add(Tasks(os.environ.get("PLANNER", ":memory:")))

if __name__ == "__main__":
    server.run()
