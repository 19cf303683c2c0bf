"""Retries of AWS's SDKs join the run that they repeat, instead of starting another one.

All attempts of one SDK call carry the same ``amz-sdk-invocation-id``. boto3 gives up after 60 s and asks again, twice: a
model that answers after 70 s would run three times, each for nobody (field case B46). A run is known by tenant, endpoint,
that id and the body's digest, in this gateway only. It outlives its caller for a moment, if the caller's SDK may come
again, and what came out of it is kept a short while where somebody may have missed it.

One event loop; no method awaits between reading and changing the state.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime.contract import Answer

# A run that was this short cannot have met a client's read timeout: nobody will ask for it again.
SHORT_S: Final = 1.0
MAX_ID: Final = 128

_ATTEMPTS: Final = re.compile(rb"attempt=(\d{1,4}).*max=(\d{1,4})")


Result = Answer | AwsError | None


class Key(NamedTuple):
    """What makes two requests the same."""

    tenant: str
    endpoint: str
    invocation: bytes
    digest: bytes


def may_come_again(sdk_request: bytes | None) -> bool:
    """Say whether an SDK would repeat this request; ``sdk_request`` is ``amz-sdk-request``, e.g. ``attempt=1; max=3``.

    botocore's first attempt names no ``max``.
    """
    found = _ATTEMPTS.search(sdk_request or b"")
    return found is None or int(found[1]) < int(found[2])


@dataclass(slots=True, eq=False)
class Run:
    """One run: ``present`` callers wait for it. Its result is None when nobody knows it."""

    key: Key
    began: float
    linger_s: float
    present: int = 1
    missed: bool = False
    over: bool = False
    _waiting: list[asyncio.Future[Result]] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _end: Callable[[], None] | None = None

    def owner_left(self, end: Callable[[], None], *, comes_again: bool) -> None:
        """The caller whose request runs has left; ``end`` ends the run."""
        self._end = end
        self._left(comes_again=comes_again)

    def join(self) -> asyncio.Future[Result]:
        """Wait for the result too. Whoever leaves calls ``joiner_left``."""
        self.present += 1
        self._stop_timer()
        waiting: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        return waiting

    def joiner_left(self, waiting: asyncio.Future[Result], *, comes_again: bool) -> None:
        """A caller who had joined has left."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            self._left(comes_again=comes_again)

    def conclude(self, result: Result) -> None:
        """Tell everybody."""
        self.over = True
        self._stop_timer()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(result)

    def _left(self, *, comes_again: bool) -> None:
        self.missed = True
        self.present -= 1
        if self.present or self.over or self._end is None:
            return
        if comes_again:
            self._timer = asyncio.get_running_loop().call_later(self.linger_s, self._end)
        else:
            self._end()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Kept(NamedTuple):
    result: Answer | AwsError
    size: int
    until: float


@dataclass(slots=True)
class Runs:
    """All runs of this gateway that may be joined, and results that may have been missed.

    ``linger_s``: how long a run goes on without a caller; ``kept_s``, ``kept_bytes``: bounds of what is kept.
    """

    monotonic: Callable[[], float]
    linger_s: float
    kept_s: float
    kept_bytes: int
    _running: dict[Key, Run] = field(default_factory=dict)
    _kept: OrderedDict[Key, _Kept] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _sweep: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        """Runs that go on."""
        return len(self._running)

    @property
    def held_bytes(self) -> int:
        """Bytes of results that are kept."""
        return self._bytes

    def find(self, key: Key) -> Run | Answer | AwsError | None:
        """Return the run to join, or what came out of it a moment ago."""
        run = self._running.get(key)
        if run is not None:
            return run
        if not self._kept:
            return None
        self._forget_old()
        kept = self._kept.get(key)
        return None if kept is None else kept.result

    def begin(self, key: Key) -> Run:
        """Begin a run."""
        run = self._running[key] = Run(key, self.monotonic(), self.linger_s)
        return run

    def end(self, run: Run, result: Result) -> None:
        """End a run with its answer, its error, or None where it was given up."""
        self._running.pop(run.key, None)
        missed = run.missed or self.monotonic() - run.began >= SHORT_S
        run.conclude(result)
        if missed and _is_final(result):
            assert result is not None
            self._keep(run.key, result)

    def _keep(self, key: Key, result: Answer | AwsError) -> None:
        size = (len(result.body) if isinstance(result, Answer) else len(result.message or "")) + 1024
        if size > self.kept_bytes:
            return
        self._forget(key)
        self._kept[key] = _Kept(result, size, self.monotonic() + self.kept_s)
        self._bytes += size
        while self._bytes > self.kept_bytes:
            self._forget(next(iter(self._kept)))
        self._watch_age()

    def _forget_old(self) -> None:
        now = self.monotonic()
        while self._kept:
            key, kept = next(iter(self._kept.items()))
            if kept.until > now:
                return
            self._forget(key)

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size

    def _watch_age(self) -> None:
        """Callers' texts are not held for longer than promised, even where nobody asks any more."""
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self.kept_s, self._swept)

    def _swept(self) -> None:
        self._sweep = None
        self._forget_old()
        if self._kept:
            self._watch_age()


def _is_final(result: Result) -> bool:
    """Whether a retry would have to get the same: an SDK repeats throttling, 429 and 5xx because it wants another answer."""
    return isinstance(result, Answer) or (isinstance(result, AwsError) and result.code == "ModelError")
