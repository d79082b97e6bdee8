"""What every way to run code is measured by: the same expression, first, in a new session, and once more in an old one.

`first` is from nothing imported to the first answer, `fresh` is a session of its own and its first answer, `warm` is
one more answer. Prints one JSON object: milliseconds, and microseconds for the last.
"""

import json
import statistics
import sys
import time

CODE = "3 + 4"


def sizes():
    """How many warm calls, and how many fresh sessions."""
    return int(sys.argv[1]), int(sys.argv[2])


def clock(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def say(first, fresh, warm):
    found = {"first": 1e3 * first, "fresh": 1e3 * statistics.median(fresh), "warm": 1e6 * statistics.median(warm)}
    print(json.dumps(found))
