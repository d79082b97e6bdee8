"""Names and texts of a server that try to be interpreted as something else."""

from __future__ import annotations

from portico_services.contracts.definitions import ServerContract, contract_from_tools

# Markup, control characters and instructions.
EVIL = [
    '"); import os; os.abort() #',
    "*/ alert(1) /*",
    '"""',
    "\\",
    "\u2028x",
    "${x}",
    "`",
    "a\nb",
    "class",
    "__init__",
    "False",
    "constructor",
    "\x00",
]


def evil_contract() -> ServerContract:
    properties = {name: {"type": "string", "description": name, "default": name, "enum": [name]} for name in EVIL}
    inner = {"type": "object", "description": "\n".join(EVIL), "properties": properties, "required": EVIL[:3]}
    listed = [
        {"name": name, "title": name, "description": "\n\n".join(EVIL), "inputSchema": inner, "outputSchema": inner}
        for name in EVIL
    ]
    return contract_from_tools(listed, server=EVIL[0], version=EVIL[1])
