"""Read keys of a hive with their times and values by regipy, for two seconds: all would take minutes."""

import logging
import time

from measurement import main
from regipy.registry import RegistryHive

PATIENCE = 2.0


def read(path):
    logging.disable()  # it logs every value that is not text
    until = time.process_time() + PATIENCE
    waiting, count = [RegistryHive(path).root], 0
    while waiting and time.process_time() < until:
        key = waiting.pop()
        count += 1
        key.name, key.header.last_modified  # noqa: B018
        if key.values_count:
            list(key.iter_values(as_json=False))
        if key.subkey_count:
            waiting += list(key.iter_subkeys())
    return count


if __name__ == "__main__":
    main(read)
