"""Kill a capturing process repeatedly, and print the acknowledged memories.

    python kills.py URL COUNT SEED

Each victim is forked from here: everything is loaded, and no loop, thread or database has been begun. It says the id of
each memory once it is kept. After a few of these, or none, and a moment more, it is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import select
import signal
import sys
import time

from portico.store.database import Database
from portico_services.memory.store.capture import MemoryDraft
from portico_services.memory.store.memory_store import MemoryStore

WORDS = re.findall(r"\w+", """
    harbour lantern meadow copper violin glacier saffron timber orchid canyon marble thistle walnut ember falcon
    quarry ribbon velvet willow anchor basil cobalt dahlia eclipse fjord garnet hazel indigo juniper krill lagoon
    mosaic nectar onyx pepper quartz raven sable tulip umber vapour wharf yarrow zephyr acorn birch cedar drift
""")  # fmt: skip
MOST_ACKNOWLEDGED = 3
LONGEST_MOMENT = 0.006
TIMEOUT_SECONDS = 60.0


async def capture(url: str, name: str, out: int) -> None:
    chance = random.Random(name)
    async with Database(url) as database:
        memories = MemoryStore(database, project="here/project")
        await memories.open()
        number = 0
        while True:
            number += 1
            word = f"{name}n{number}"
            text = f"{word} has to do with {' and '.join(chance.sample(WORDS, 8))}"
            result = await memories.capture(MemoryDraft(content=text, namespace="learnings", tags=[name]))
            os.write(out, f"{result.record.id} {word}\n".encode())


def victim(url: str, name: str) -> tuple[int, int]:
    """The process, and its log of acknowledged memories."""
    message, saying = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(message)
            asyncio.run(capture(url, name, saying))
        finally:
            os._exit(1)
    os.close(saying)
    return process, message


def kill(url: str, name: str, chance: random.Random) -> bytes:
    process, message = victim(url, name)
    heard = b""
    try:
        least = chance.randrange(MOST_ACKNOWLEDGED + 1)
        while heard.count(b"\n") < least:
            if not select.select([message], [], [], TIMEOUT_SECONDS)[0] or not (more := os.read(message, 4096)):
                raise SystemExit(f"{name} captures nothing")
            heard += more
        time.sleep(chance.random() * LONGEST_MOMENT)  # to hit it anywhere, not only where it has just spoken
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    while more := os.read(message, 4096):
        heard += more
    os.close(message)
    return heard[: heard.rfind(b"\n") + 1]


def main(url: str, count: str, seed: str) -> None:
    chance = random.Random(int(seed))
    for number in range(int(count)):
        sys.stdout.buffer.write(kill(url, f"r{number}", chance))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:4])
