"""pydantic-monty, an interpreter of a part of Python: `monty_live.py WARM FRESH`."""

import time

from timing import CODE, clock, say, sizes


def main():
    warm_calls, sessions = sizes()
    began = time.perf_counter()
    from pydantic_monty import Monty

    with Monty() as pool:
        with pool.checkout() as session:
            assert session.feed_run(CODE) == 7
            first = time.perf_counter() - began
            warm = [clock(lambda: session.feed_run(CODE)) for _ in range(warm_calls)]

        def new():
            with pool.checkout() as session:
                session.feed_run(CODE)

        fresh = [clock(new) for _ in range(sessions)]
    say(first, fresh, warm)


if __name__ == "__main__":
    main()
