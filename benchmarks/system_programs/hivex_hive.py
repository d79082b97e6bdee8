"""Read every key of a hive with its time and values by hivex."""

import hivex
from measurement import main


def read(path):
    hive = hivex.Hivex(path)
    waiting, count = [hive.root()], 0
    while waiting:
        key = waiting.pop()
        count += 1
        hive.node_name(key), hive.node_timestamp(key)
        for value in hive.node_values(key):
            hive.value_key(value), hive.value_value(value)
        waiting += hive.node_children(key)
    return count


if __name__ == "__main__":
    main(read)
