"""What goes from the loop to a thread: bounded, counted, and never waited for."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

from standby.telemetry.background import Background
from support.waiting import until


class Work:
    """Takes batches; may be held up, and breaks at ``broken``."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.let_go = threading.Event()
        self.let_go.set()
        self.threads: set[str] = set()

    def __call__(self, batch: Sequence[str]) -> None:
        self.threads.add(threading.current_thread().name)
        assert self.let_go.wait(30)
        if "broken" in batch:
            raise RuntimeError("broken")
        self.taken += batch


async def test_what_is_added_is_worked_off_in_order_in_another_thread() -> None:
    work = Work()
    background = Background("worker", work, after_s=0.01)
    for number in range(100):
        background.add(f"{number}")
    assert work.taken == []
    await until(lambda: len(work.taken) == 100)
    assert work.taken == [f"{number}" for number in range(100)]
    assert work.threads == {"worker"}
    await background.close(30)


async def test_the_end_takes_what_waits_along() -> None:
    work, lost = Work(), Counter[str]()
    background = Background("worker", work, lost=lambda count, why: lost.update({why: count}), after_s=60)
    background.add("last")
    await background.close(30)
    assert work.taken == ["last"]
    background.add("too late")
    assert lost == {"queue": 1}


async def test_a_thread_that_hangs_bounds_what_is_held_and_is_left_behind() -> None:
    work, lost = Work(), Counter[str]()
    work.let_go.clear()
    background = Background("worker", work, lost=lambda count, why: lost.update({why: count}), limit=10, after_s=0.001)
    for number in range(25):
        background.add(f"{number}")
    await until(lambda: work.threads)
    background.add("more")
    assert lost == {"queue": 16}
    # Nobody lets it go: that this returns is the proof.
    await background.close(0.01)
    assert lost == {"queue": 16, "shutdown": 10}
    work.let_go.set()
    await until(lambda: len(work.taken) == 10)


async def test_a_batch_that_breaks_is_lost_and_the_next_one_is_not() -> None:
    work, lost = Work(), Counter[str]()
    background = Background("worker", work, lost=lambda count, why: lost.update({why: count}), after_s=0.001)
    background.add("broken")
    await until(lambda: lost)
    background.add("whole")
    await until(lambda: work.taken)
    assert (work.taken, lost) == (["whole"], {"error": 1})
    await background.close(30)


async def test_nothing_is_started_where_nothing_is_added() -> None:
    background: Background[str] = Background("nobody-starts-it", Work())
    await background.close(30)
    assert "nobody-starts-it" not in {thread.name for thread in threading.enumerate()}
    await asyncio.sleep(0)
