"""pyeryx, CPython in WebAssembly: `eryx_live.py WARM FRESH`."""

import time

from timing import CODE, clock, say, sizes


def main():
    warm_calls, sessions = sizes()
    began = time.perf_counter()
    import eryx

    def new():
        session = eryx.Session(result_variable="r")
        session.execute(f"r = {CODE}")
        return session

    session = new()
    first = time.perf_counter() - began
    warm = [clock(lambda: session.execute(f"r = {CODE}")) for _ in range(warm_calls)]
    say(first, [clock(new) for _ in range(sessions)], warm)


if __name__ == "__main__":
    main()
