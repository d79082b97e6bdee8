"""A stdio server of 2025-06-18 in the standard library only, so that tests can start many of them.

Its tools ask the client for roots and input, remember values, wait, and end the process.
"""

import itertools
import json
import os
import sys
import threading
import time
from typing import Any

lock = threading.Lock()
ids = itertools.count(1)
answers: dict[Any, Any] = {}
arrived = threading.Condition()
client: dict[str, Any] = {}
remembered: list[str] = []
roots_changes = 0


def send(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(method: str, params: dict[str, Any]) -> Any:
    id = next(ids)
    send({"id": id, "method": method, "params": params})
    with arrived:
        arrived.wait_for(lambda: id in answers, timeout=30)
        return answers.pop(id, None)


def call(name: str, arguments: dict[str, Any]) -> Any:
    if name == "about":
        return {
            "pid": os.getpid(),
            "cwd": os.getcwd(),
            "token": os.environ.get("TOKEN"),
            "other": os.environ.get("OTHER"),
            "client": client,
            "roots_changes": roots_changes,
        }
    if name == "roots":
        return ask("roots/list", {})
    if name == "elicit":
        return ask("elicitation/create", {"message": arguments["text"], "requestedSchema": {"type": "object"}})
    if name == "sample":
        message = {"role": "user", "content": {"type": "text", "text": arguments["text"]}}
        return ask("sampling/createMessage", {"messages": [message], "maxTokens": 9})
    if name == "remember":
        remembered.append(arguments["text"])
        return remembered
    if name == "echo":
        return arguments["text"]
    if name == "wait":
        # The test decides when the call ends, by creating a file.
        while not os.path.exists(arguments["file"]):
            time.sleep(0.005)
        return os.getpid()
    if name == "exit":
        os._exit(3)
    if name == "garbage":
        with lock:
            sys.stdout.write(arguments["text"] + "\n")
            sys.stdout.flush()
        return "sent"
    raise KeyError(name)


TOOLS = ("about", "roots", "elicit", "sample", "remember", "echo", "wait", "exit", "garbage")


def handle(message: dict[str, Any]) -> None:
    global roots_changes
    method, id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None:
        with arrived:
            answers[id] = message.get("result", message.get("error"))
            arrived.notify_all()
    elif method == "initialize":
        client.update(params)
        about = {"name": "handshake-server", "version": "1"}
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": about,
        }
        send({"id": id, "result": {**result, "instructions": "Use these tools."}})
    elif method == "notifications/roots/list_changed":
        roots_changes += 1
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
        send({"id": id, "result": {"tools": tools}})
    elif method == "tools/call":
        text = json.dumps(call(params["name"], params.get("arguments") or {}))
        send({"id": id, "result": {"content": [{"type": "text", "text": text}]}})
    elif id is not None:
        send({"id": id, "error": {"code": -32601, "message": f"Method not found: {method}"}})


if os.environ.get("FAIL_TO_START"):
    sys.exit("cannot start")
for line in sys.stdin:
    threading.Thread(target=handle, args=(json.loads(line),), daemon=True).start()
