"""The smallest server there is.

portico serve examples/hello.py
"""

from portico import Server

server = Server("hello", version="1.0.0")


@server.tool
def greet(name: str) -> str:
    """Say hello to somebody."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    server.run()
