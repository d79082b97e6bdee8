"""Services: a class with a lifespan, a service built with decorators, and registration at run time.

portico serve examples/workshop.py
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from sqlite3 import Connection, connect

from portico import Server, Service, tool


class Parts(Service):
    """A service with a lifespan."""

    name = "parts"
    database: Connection

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self.database = connect(":memory:", check_same_thread=False)
        self.database.execute("create table parts (name text)")
        try:
            yield
        finally:
            self.database.close()

    @tool
    def add_part(self, name: str) -> str:
        """Add a part."""
        self.database.execute("insert into parts values (?)", (name,))
        return f"Added {name}."

    @tool(annotations={"readOnlyHint": True})
    def count_parts(self) -> int:
        """Return the number of parts."""
        [count] = self.database.execute("select count(*) from parts").fetchone()
        return count


drilling = Service("drilling")


@drilling.tool(run_in_thread=False)
def drill(diameter: float) -> str:
    """Drill a hole."""
    return f"A hole of {diameter} mm."


@asynccontextmanager
async def open_doors(server: Server) -> AsyncIterator[None]:
    print(f"{server.name} opens")
    yield
    print(f"{server.name} closes")


server = Server("workshop", version="1.0.0", lifespan=open_doors)
server.add(Parts())


@server.tool(run_in_thread=False)
def plug_in(machine: bool) -> str:
    """Plug the drill in or out, which adds or removes its tools."""
    if machine:
        server.add(drilling)
        return "The drill is available."
    server.remove("drilling")
    return "The drill is not available."


if __name__ == "__main__":
    server.run()
