"""Entry points inside WebAssembly: an interpreter with requests and replies in JSON."""

from __future__ import annotations

import json
import platform
import sys
import types

from portico_services.livepython.sandbox.interpreter import MAX_INTEGER_DIGITS, Interpreter
from portico_services.livepython.sandbox.limits import SandboxLimits
from portico_services.livepython.sandbox.name_resolution import InspectionError

_images: list[Interpreter] = []


def start(limits: str) -> None:
    # Set inside as well: limits of the host's interpreter do not reach the guest.
    sys.set_int_max_str_digits(MAX_INTEGER_DIGITS)
    namespace = vars(types.ModuleType("__main__"))
    _images.append(Interpreter(namespace, limits=SandboxLimits(**json.loads(limits))))


def handle_request(request: str) -> str:
    message = json.loads(request)
    if message["op"] == "version":
        return json.dumps(("result", {"version": platform.python_version()}))
    try:
        return json.dumps(("result", _images[0].handle(message["op"], message["arguments"])))
    except InspectionError as refusal:
        # As a pair, since an exception cannot cross the boundary of the WebAssembly instance.
        return json.dumps((refusal.member, str(refusal)))
