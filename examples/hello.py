"""A minimal server.

portico serve examples/hello.py
"""

from portico import Server

server = Server("hello", version="1.0.0")


@server.tool
def greet(name: str) -> str:
    """Greet a person by name."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    server.run()
