"""Standalone program that parses chunks of Windows event logs: it reads chunks and writes their records.

It imports nothing of Portico, to start quickly. Chunks and responses are prefixed by their length in four bytes.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any

try:
    import resource
except ImportError:  # Not available on Windows, where only the timeout of the parent holds.
    resource = None  # type: ignore[assignment]

MAX_ERRORS = 20
MEMORY_LIMIT_BYTES = 1024 * 2**20
# Processor time, not wall-clock time: a chunk that takes milliseconds must not be lost because the machine is busy.
MAX_CPU_SECONDS_PER_CHUNK = 3


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


def limit_memory() -> None:
    """Limit the memory of this process."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))


def limit_cpu_time() -> None:
    """End this process, by SIGXCPU, if the next chunk takes too much processor time."""
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(usage.ru_utime + usage.ru_stime) + 1 + MAX_CPU_SECONDS_PER_CHUNK
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main() -> None:
    """Parse chunks from standard input until it ends."""
    import evtx

    limit_memory()
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(4)) == 4:
        limit_cpu_time()
        answer = json.dumps(read_records(evtx.PyEvtxParser, source.read(int.from_bytes(head, "big")))).encode()
        target.write(len(answer).to_bytes(4, "big") + answer)
        target.flush()


if __name__ == "__main__":
    main()
