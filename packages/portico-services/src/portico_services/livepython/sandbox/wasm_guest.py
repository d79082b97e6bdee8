"""The end of the line inside WebAssembly: an image, asked in JSON."""

from __future__ import annotations

import json
import platform
import sys
import types

from portico_services.livepython.sandbox.interpreter import LONGEST_INTEGER, Interpreter
from portico_services.livepython.sandbox.limits import Limits
from portico_services.livepython.sandbox.name_resolution import InspectionError

_images: list[Interpreter] = []


def begin(limits: str) -> None:
    sys.set_int_max_str_digits(LONGEST_INTEGER)
    namespace = vars(types.ModuleType("__main__"))
    _images.append(Interpreter(namespace, limits=Limits(**json.loads(limits))))


def answer(request: str) -> str:
    asked = json.loads(request)
    if asked["op"] == "version":
        return json.dumps(("result", {"version": platform.python_version()}))
    try:
        return json.dumps(("result", _images[0].answer(asked["op"], asked["arguments"])))
    except InspectionError as refusal:
        return json.dumps((refusal.member, str(refusal)))
