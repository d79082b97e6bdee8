"""Install npm's @modelcontextprotocol/ext-apps, at the version that tests/support/npm/apps pins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs

from support import node
from support.paths import SUPPORT

PINS = SUPPORT / "npm" / "apps"


def files() -> Path:
    """Return its folder. Raises `node.NotInstalled`."""
    return node.install(PINS, "ext-apps").modules / "@modelcontextprotocol/ext-apps/dist/src"


def script() -> str:
    """Return the bundled App for a page. Its exports are in `ext`."""
    source = (files() / "app-with-deps.js").read_text(encoding="utf-8")
    body, _, exported = source.rpartition("export{")
    names = re.findall(r"([^\s,]+) as (\w+)", exported.partition("}")[0])
    offered = ",".join(f"{name}: {own}" for own, name in names)
    return f"{body}globalThis.ext = {{{offered}}};".replace("</script", "<\\/script")


def checker() -> Callable[[str, Any], None]:
    """Return a script that validates values against its schemas, without additional members."""
    data = json.loads((files() / "generated/schema.json").read_text(encoding="utf-8"))["$defs"]
    return lambda name, value: jsonschema_rs.validator_for(data[name]).validate(value)
