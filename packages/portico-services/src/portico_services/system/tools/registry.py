"""Tools and resources for the registry of Windows, or the settings of other platforms."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from msgspec import Meta

from portico import Context, Service, ToolError, resource, tool
from portico_services.system.machine_access import READ_ONLY_HINTS, CursorParameter, MachineAccess
from portico_services.system.results import (
    MAX_KEY_PAGE_ITEMS,
    MAX_READ_BYTES,
    RegistryKey,
    RegistryValueRange,
    RegistryWriteResult,
)

KeyPathParameter = Annotated[
    str, Meta(description="Registry key, e.g. HKEY_CURRENT_USER\\Software\\Example", max_length=4096)
]


class RegistryTools(Service):
    """Registry tools. Writes require the user's confirmation if the client supports it."""

    def __init__(self, access: MachineAccess, level: str) -> None:
        super().__init__()
        self._access = access
        self._level = level

    @tool(version="1.1.0", annotations=READ_ONLY_HINTS, aliases=["reg.list"])
    def reg_list(
        self,
        path: Annotated[str, Meta(description="Registry key; default: the top-level branches", max_length=4096)] = "",
        limit: Annotated[
            int, Meta(description="Maximum subkeys and maximum values", ge=1, le=MAX_KEY_PAGE_ITEMS)
        ] = MAX_KEY_PAGE_ITEMS,
        cursor: CursorParameter = None,
    ) -> RegistryKey:
        """List the subkeys and values of a registry key; values are truncated to 4,096 bytes.

        On systems other than Windows, HKEY_* is a registry of this server, next to sysctl, gsettings or plist branches.
        """
        with self._access.audit("reg_list", path=path):
            return self._access.machine.key(path, limit, cursor or None)

    @tool(version="1.1.0", annotations=READ_ONLY_HINTS, aliases=["reg.read"])
    def reg_read(
        self,
        path: KeyPathParameter,
        name: Annotated[str, Meta(description="Value name; empty for the default value", max_length=16_383)] = "",
        offset: Annotated[int, Meta(description="First byte; `nextOffset` from the previous range", ge=0)] = 0,
        length: Annotated[int, Meta(description="Maximum bytes", ge=1, le=MAX_READ_BYTES)] = 65_536,
    ) -> RegistryValueRange:
        """Read one registry value; long values in ranges. Use reg_list to find names."""
        with self._access.audit("reg_read", path=path, name=name, offset=offset or None):
            return self._access.machine.value(path, name, offset, length)

    @tool(annotations={"destructiveHint": True, "idempotentHint": True, "openWorldHint": False}, aliases=["reg.write"])
    async def reg_write(
        self,
        path: KeyPathParameter,
        name: Annotated[str, Meta(description="Value name; empty for the default value", max_length=255)],
        value: Annotated[str | int | list[str], "String, number or list of strings; bytes as hex"],
        type: Annotated[
            str | None, Meta(description="REG_SZ, REG_DWORD, …; default: inferred from the value", max_length=40)
        ] = None,
        dry_run: Annotated[bool, "Preview without writing"] = False,
        ctx: Context = None,  # type: ignore[assignment]
    ) -> RegistryWriteResult:
        """Write a registry value and create missing keys. Use dry_run to preview the change. Returns the value before
        and after.
        """
        with self._access.audit("reg_write", path=path, name=name, type=type, dry_run=dry_run):
            write = partial(self._access.machine.write, path, name, value, type)
            # A dry run first: it rejects invalid values before the user is asked, and resolves the path that the
            # question shows.
            planned = await ctx.run_in_thread(partial(write, dry_run=True))
            if dry_run:
                return planned
            # Without write access the call below raises the error that explains how to allow it; asking the user first
            # would be pointless.
            if self._level == "read-write" and ctx.client_capabilities.supports_elicitation("form"):
                answer = await ctx.elicit(f"Write {value!r} to {planned.path}\\{name}?", ["yes", "no"], key="write")
                # Everything but an explicit yes is a refusal, including a cancelled dialog.
                if answer.action != "accept" or answer.data != "yes":
                    raise ToolError("Nothing was written: the user declined.")
            return await ctx.run_in_thread(partial(write, dry_run=False))

    @resource("reg://hives", mime_type="application/json", title="Registry")
    def hives(self) -> RegistryKey | None:
        """List the top-level registry branches."""
        return self._access.resource("reg://hives", partial(self._access.machine.key, ""))

    # `security=None`: registry paths contain backslashes and dots, and are never used as file paths.
    @resource("reg://{+path}", security=None, mime_type="application/json", title="A registry key")
    def registry_key(self, path: str) -> RegistryKey | None:
        """Return one registry key with its subkeys and values."""
        return self._access.resource(f"reg://{path}", partial(self._access.machine.key, path))
