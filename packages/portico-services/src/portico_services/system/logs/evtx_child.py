"""Standalone program that parses chunks of Windows event logs: it reads chunks and writes their records.

It imports nothing of Portico, to start quickly. Chunks and responses are prefixed by their length in four bytes.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

MAX_ERRORS = 20
MEMORY_LIMIT_BYTES = 1024 * 2**20


def read_records(parser: Any, file: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a one-chunk file in order, and the errors of records that could not be parsed."""
    results: list[dict[str, Any]] = []
    damage: list[str] = []
    try:
        reading = parser(io.BytesIO(file), number_of_threads=1).records_json()
    except (RuntimeError, OSError, ValueError) as error:
        return [], [str(error)]
    while len(damage) < MAX_ERRORS:
        try:
            results.append(next(reading))
        except StopIteration:
            break
        except (RuntimeError, ValueError) as error:
            damage.append(str(error))
    return results, damage


def main() -> None:
    """Parse chunks from standard input until it ends."""
    import evtx

    try:
        import resource  # Not available on Windows.

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    except ImportError:
        pass
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(4)) == 4:
        answer = json.dumps(read_records(evtx.PyEvtxParser, source.read(int.from_bytes(head, "big")))).encode()
        target.write(len(answer).to_bytes(4, "big") + answer)
        target.flush()


if __name__ == "__main__":
    main()
