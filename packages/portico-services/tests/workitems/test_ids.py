"""Ids sort by creation time."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from portico_services.workitems.ids import ID_LENGTH, IdGenerator, is_id


def test_ids_are_short_and_need_no_escaping() -> None:
    id = IdGenerator().next_id()
    assert re.fullmatch(r"task_[0-9a-z]{17}", id)
    assert len(id) == ID_LENGTH == 22
    assert is_id(id) and not is_id(id[:-1]) and not is_id(id + "0") and not is_id(id.upper()) and not is_id("task_xyz")


def test_many_within_one_millisecond_stay_in_order() -> None:
    ids = IdGenerator(lambda: 1_700_000_000_000)
    made = [ids.next_id() for _ in range(50_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_later_id_sorts_later_in_any_process() -> None:
    early = [IdGenerator(lambda: 1_700_000_000_000).next_id() for _ in range(100)]
    late = [IdGenerator(lambda: 1_700_000_000_001).next_id() for _ in range(100)]
    assert max(early) < min(late)


def test_clock_that_is_set_back_does_not_turn_the_order() -> None:
    times = iter([2_000, 1_000, 1_500, 2_001])
    ids = IdGenerator(lambda: next(times))
    made = [ids.next_id() for _ in range(4)]
    assert made == sorted(made)


def test_threads_never_get_the_same_one() -> None:
    ids = IdGenerator()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ids.next_id(), range(10_000)))
    assert len(set(made)) == len(made)
