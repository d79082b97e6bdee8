"""Read every key of a hive with its time and values by libregf."""

import pyregf
from measurement import main


def read(path):
    file = pyregf.file()
    file.open(path)
    waiting, count = [file.get_root_key()], 0
    while waiting:
        key = waiting.pop()
        count += 1
        key.name, key.get_last_written_time_as_integer()
        for value in key.values:
            value.name, value.type, value.data  # noqa: B018
        waiting += list(key.sub_keys)
    file.close()
    return count


if __name__ == "__main__":
    main(read)
