"""The registry as tools and resources: of Windows, or what another system has in its place."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from msgspec import Meta

from portico import Context, Service, ToolError, resource, tool
from portico_services.system.machine_access import READING, Cursor, MachineLooks
from portico_services.system.results import LARGEST_READ, MOST_LISTED, RegistryChange, RegistryKey, RegistryRead

KeyPath = Annotated[str, Meta(description=r"A key, such as HKEY_CURRENT_USER\Software\Example", max_length=4096)]


class RegistryTools(Service):
    """Writes are asked about, where the level says so."""

    def __init__(self, looking: MachineLooks, level: str) -> None:
        super().__init__()
        self._looking = looking
        self._level = level

    @tool(version="1.1.0", annotations=READING, aliases=["reg.list"])
    def reg_list(
        self,
        path: Annotated[str, Meta(description="A key; empty for the branches", max_length=4096)] = "",
        limit: Annotated[
            int, Meta(description="The most subkeys, and the most values, to give", ge=1, le=MOST_LISTED)
        ] = MOST_LISTED,
        cursor: Cursor = None,
    ) -> RegistryKey:
        r"""List a key of the registry: its subkeys and values, of each the first 4,096 bytes.

        Where there is no Windows, HKEY_… is a registry of this server's own, beside sysctl, gsettings or plists.
        """
        with self._looking.recorded("reg_list", path=path):
            return self._looking.machine.key(path, limit, cursor or None)

    @tool(version="1.1.0", annotations=READING, aliases=["reg.read"])
    def reg_read(
        self,
        path: KeyPath,
        name: Annotated[str, Meta(description="The value's name; empty for the default value", max_length=16_383)] = "",
        offset: Annotated[int, Meta(description="The byte to begin with; nextOffset of the part before", ge=0)] = 0,
        length: Annotated[int, Meta(description="The most bytes to read", ge=1, le=LARGEST_READ)] = 65_536,
    ) -> RegistryRead:
        """Read one value of a registry key; a long one in parts."""
        with self._looking.recorded("reg_read", path=path, name=name, offset=offset or None):
            return self._looking.machine.value(path, name, offset, length)

    @tool(annotations={"destructiveHint": True, "idempotentHint": True, "openWorldHint": False}, aliases=["reg.write"])
    async def reg_write(
        self,
        path: KeyPath,
        name: Annotated[str, Meta(description="The value's name; empty for the default value", max_length=255)],
        value: Annotated[str | int | list[str], "A text, a number, or a list of texts; bytes as hexadecimal digits"],
        type: Annotated[
            str | None, Meta(description="REG_SZ, REG_DWORD, …; otherwise by the value", max_length=40)
        ] = None,
        dry_run: Annotated[bool, "Only say what would be written"] = False,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> RegistryChange:
        """Write a value to the registry. The keys on the way to it are made."""
        with self._looking.recorded("reg_write", path=path, name=name, type=type, dry_run=dry_run):
            write = partial(self._looking.machine.write, path, name, value, type)
            planned = await ctx.in_thread(partial(write, dry_run=True))
            if dry_run:
                return planned
            if self._level == "read-write" and ctx.capabilities.can_elicit("form"):
                answer = await ctx.elicit(f"Write {value!r} to {planned.path}\\{name}?", ["yes", "no"], key="write")
                if answer.action != "accept" or answer.data != "yes":
                    raise ToolError("Nothing was written: the user did not agree.")
            return await ctx.in_thread(partial(write, dry_run=False))

    @resource("reg://hives", mime_type="application/json", title="Registry")
    def hives(self) -> RegistryKey | None:
        """The branches of the registry."""
        return self._looking.resource("reg://hives", partial(self._looking.machine.key, ""))

    @resource("reg://{+path}", security=None, mime_type="application/json", title="A registry key")
    def registry_key(self, path: str) -> RegistryKey | None:
        """A key with its subkeys and values."""
        return self._looking.resource(f"reg://{path}", partial(self._looking.machine.key, path))
