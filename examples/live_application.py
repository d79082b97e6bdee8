"""Inspect the live objects of a running application.

portico serve examples/live_application.py
"""

from dataclasses import dataclass, field

from portico import Server
from portico_services.livepython import AttachedPython, attach


@dataclass
class Order:
    """An order of a customer."""

    customer: str
    items: list[str] = field(default_factory=list)

    def total(self) -> int:
        """Return the number of items."""
        return len(self.items)


orders = {17: Order("Ada", ["tea", "milk"]), 18: Order("Bob")}

server = Server("shop", version="1.0.0")
server.add(AttachedPython(globals()))


def work() -> None:
    """Serve to this machine while the application does other work."""
    with attach(globals()) as attachment:
        print(attachment.url, attachment.token)


if __name__ == "__main__":
    server.run()
