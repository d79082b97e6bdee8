"""Two servers behind one endpoint: one in this process, one in a child process.

portico list tools examples/gateway.py
portico call examples/gateway.py weather_forecast city=Oslo
"""

import sys
from pathlib import Path

from portico import Server
from portico_gateway import Gateway

notes_server = Server("notes")


@notes_server.tool
def remember(text: str) -> str:
    """Store a note."""
    return f"remembered: {text}"


server = Gateway({"notes": notes_server})
server.add_upstream("weather", [sys.executable, str(Path(__file__).with_name("weather.py"))], timeout=20)

if __name__ == "__main__":
    server.run()
