"""The commands that ask a server, and show what it says."""

from __future__ import annotations

from portico.cli.specs.options import (
    CONNECTION,
    JSON,
    OUTPUT,
    PAIRS,
    SAVE,
    SEEING,
    SHORT_OUTPUT,
    STORE,
    TARGET,
    TARGETS,
    asking_form,
    port,
)
from portico.cli.specs.parser import CommandForm, flag, word

KINDS = ("tools", "resources", "templates", "prompts")
EVERYTHING = "everything"

FORMS: dict[str, CommandForm] = {
    "list": asking_form(
        "list",
        f"[{'|'.join(KINDS)}] TARGET",
        f"[{'|'.join(KINDS)}] -- COMMAND …",
        "List what a server has: everything, or one kind of it.",
        (word("kind", choices=(*KINDS, EVERYTHING), metavar="|".join(KINDS)), TARGET),
        OUTPUT,
        JSON,
        examples=("list tools http://127.0.0.1:8080/mcp", "list resources my_server.py"),
    ),
    "call": asking_form(
        "call",
        "TARGET TOOL [key=value …]",
        "TOOL [key=value …] -- COMMAND …",
        "Call a tool.\n\n"
        "  key=value     a value, read as the tool's schema wants it\n"
        "  key=a key=b   several, for an array\n"
        "  a.b=value     inside an object\n"
        "  key=@file     what is in a file; key=- what is on standard input\n"
        "  key:=json     JSON as it is",
        (TARGET, word("tool", "tools", metavar="TOOL"), PAIRS),
        flag("--json", metavar="JSON", dest="json_arguments", help="all arguments as JSON: '{…}', @file or -"),
        OUTPUT,
        SAVE,
        examples=("call my_server.py greet name=Ada", "call http://127.0.0.1:8080/mcp memory_status"),
    ),
    "inspect": asking_form(
        "inspect",
        "TARGET",
        "-- COMMAND …",
        "What a server is: name, revisions, instructions, capabilities, what it offers, how many tokens its tools\n"
        "take, and what is wrong with them.",
        (TARGET,),
        OUTPUT,
        JSON,
        examples=("inspect my_server.py", "inspect -- npx -y @modelcontextprotocol/server-everything"),
    ),
    "doctor": CommandForm(
        "portico doctor [TARGET] [options]\n       portico doctor [options] -- command arg …",
        "What would keep a server from working here: Python, extras, the store, the port, the configurations of\n"
        "clients; of a TARGET also whether it answers, and where its login breaks. Nothing is changed.",
        (word("target", "target", nargs="?", help="a server to try"),),
        {
            "": (
                flag("--port", type=port, metavar="PORT", help="whether this one is free (default: 8080)"),
                *STORE,
                *SEEING,
                SHORT_OUTPUT,
                JSON,
            ),
            **CONNECTION,
        },
        TARGETS + "\nExit status: 0; 1 when something is wrong; 2 for a mistake on this line.",
        examples=("doctor", "doctor https://mcp.example.com/mcp"),
    ),
    "read": asking_form(
        "read",
        "TARGET URI",
        "URI -- COMMAND …",
        "Read a resource.",
        (TARGET, word("uri", "resources", metavar="URI")),
        OUTPUT,
        JSON,
        SAVE,
        examples=("read my_server.py config://app",),
    ),
    "prompt": asking_form(
        "prompt",
        "TARGET NAME [key=value …]",
        "NAME [key=value …] -- COMMAND …",
        "Fill in a prompt. Its arguments are texts: key=value, key=@file, or key=- for standard input;\n"
        "key:='\"@name\"' is a JSON string, for a text that begins with @ or is a single dash.",
        (TARGET, word("name", "prompts", metavar="NAME"), PAIRS),
        OUTPUT,
        JSON,
        SAVE,
        examples=("prompt my_server.py review code=@main.py",),
    ),
}
