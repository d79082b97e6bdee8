"""An application that an assistant can look into: its own objects, while they live.

portico serve examples/live_application.py
"""

from dataclasses import dataclass, field

from portico import Server
from portico_services.livepython import AttachedPython, attach


@dataclass
class Order:
    """What somebody wants."""

    customer: str
    items: list[str] = field(default_factory=list)

    def total(self) -> int:
        """How many things."""
        return len(self.items)


orders = {17: Order("Ada", ["tea", "milk"]), 18: Order("Bob")}

server = Server("shop", version="1.0.0")
server.add(AttachedPython(globals()))


def work() -> None:
    """In the middle of an application that does something else: serve, to this machine, and go on."""
    with attach(globals()) as attachment:
        print(attachment.url, attachment.token)


if __name__ == "__main__":
    server.run()
