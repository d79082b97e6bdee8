"""Read every entry of a journal with all its fields by cysystemd."""

from cysystemd.reader import JournalReader
from measurement import main


def read(path):
    reader = JournalReader()
    reader.max_open_files(path)
    reader.seek_head()
    count = 0
    for record in reader:
        record.data  # noqa: B018
        count += 1
    return count


if __name__ == "__main__":
    main(read)
