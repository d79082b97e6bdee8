"""A program of its own that reads chunks of Windows event logs: a chunk comes in, its records go out.

It imports nothing of Portico, since it is started anew to read one file. Chunks and answers are preceded
by their length, in four bytes.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

MOST_ERRORS = 20
MEMORY = 1024 * 2**20


def records(parser: Any, file: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a file of one chunk, in their order, and what is wrong with those that are missing."""
    found: list[dict[str, Any]] = []
    damage: list[str] = []
    try:
        reading = parser(io.BytesIO(file), number_of_threads=1).records_json()
    except (RuntimeError, OSError, ValueError) as error:
        return [], [str(error)]
    while len(damage) < MOST_ERRORS:
        try:
            found.append(next(reading))
        except StopIteration:
            break
        except (RuntimeError, ValueError) as error:
            damage.append(str(error))
    return found, damage


def main() -> None:
    import evtx

    try:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    except ImportError:
        pass
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(4)) == 4:
        answer = json.dumps(records(evtx.PyEvtxParser, source.read(int.from_bytes(head, "big")))).encode()
        target.write(len(answer).to_bytes(4, "big") + answer)
        target.flush()


if __name__ == "__main__":
    main()
