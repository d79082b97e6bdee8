"""The first server of the README.

portico serve examples/calculator.py
"""

from portico import Server

server = Server("calculator")


@server.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    server.run()
