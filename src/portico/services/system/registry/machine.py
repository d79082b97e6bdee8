"""Which branches a machine has."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from portico.services.system import programs
from portico.services.system.containment import AllowedRoots
from portico.services.system.errors import MachineError
from portico.services.system.registry.hives import HiveBranch
from portico.services.system.registry.portable import PortableRegistry
from portico.services.system.registry.settings import GsettingsBranch, PlistBranch, SysctlBranch
from portico.services.system.registry.tree import Branch
from portico.services.system.registry.windows import BRANCHES, WindowsBranch


def branches(hives: Mapping[str, str | os.PathLike[str]], portable: PortableRegistry) -> dict[str, Branch]:
    """The branches of Windows, live or portable; what else this system has; and the configured hive files."""
    found: dict[str, Branch] = {}
    for name in BRANCHES:
        try:
            found[name] = WindowsBranch(name) if sys.platform == "win32" else portable.branch(name)
        except MachineError:
            found[name] = portable.branch(name)
    if os.path.isdir("/proc/sys"):
        found["sysctl"] = SysctlBranch()
    if programs.find("gsettings") is not None:
        found["gsettings"] = GsettingsBranch()
    if sys.platform == "darwin":
        found["plists"] = PlistBranch()
    for name, path in hives.items():
        where = os.path.abspath(path)
        found[name] = HiveBranch(AllowedRoots([where], tells_paths=False), where)
    return found
