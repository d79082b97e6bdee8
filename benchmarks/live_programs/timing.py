"""Measurement shared by all interpreters: the same expression, first, in a new session, and again in an old one.

`first` is from nothing imported to the first answer, `fresh` is a new session and its first result, `warm` is
one more answer. Prints one JSON object: milliseconds, and microseconds for the last.
"""

import json
import statistics
import sys
import time

CODE = "3 + 4"


def sizes():
    """Return the number of warm calls and of new sessions."""
    return int(sys.argv[1]), int(sys.argv[2])


def clock(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def say(first, fresh, warm):
    results = {"first": 1e3 * first, "fresh": 1e3 * statistics.median(fresh), "warm": 1e6 * statistics.median(warm)}
    print(json.dumps(results))
