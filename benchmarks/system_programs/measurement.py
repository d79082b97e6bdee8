"""Measurement shared by all readers of hives and journals: CPU seconds of one complete read.

Prints one JSON object: how many were read, and how many a second.
"""

import json
import sys
import time

LEAST = 0.2  # seconds: what is over sooner is read again


def main(read):
    path, least = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else LEAST
    began, times = time.process_time(), 0
    while not times or time.process_time() - began < least:
        count = read(path)
        times += 1
    print(json.dumps({"count": count, "rate": count * times / (time.process_time() - began)}))
