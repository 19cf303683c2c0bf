"""The ready instances of one variant as one gateway sees them: which of them get requests, and how many each has.

A variant with several engines has a pool for each (``pool``); every other one has a single pool, and nothing is compared
but its instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from standby.domain.ask import NOTHING, Ask
from standby.domain.instance import Instance, InstanceState
from standby.domain.priority import Priority
from standby.domain.traffic import Tier, TrafficPolicy
from standby.gateway import breaker, prompt_lengths
from standby.gateway.breaker import Phase
from standby.gateway.hybrid import BackendView, TokenCount, bytes_decide, choose_backend, first_to_wake, worth_waking
from standby.gateway.pool import Pool
from standby.gateway.prompt_lengths import Lengths
from standby.gateway.ready_instance import ReadyInstance
from standby.gateway.results import Result, ResultKind
from standby.gateway.route import Route, RoutePart, TokenCounter
from standby.gateway.router import Choice, choose

__all__ = ["ReadyInstance", "ReadyInstances"]

_NOBODY: Final[frozenset[str]] = frozenset()
_USUAL_TRAFFIC: Final = TrafficPolicy()
_USUAL_OUTPUT: Final = 64.0
# An engine that sleeps is asked for so often at most while others serve its requests.
WAKE_EVERY_S: Final = 5.0
# What an instance goes through when it is put to sleep; any other way out of being ready is a failure.
_IN_ORDER: Final = frozenset({InstanceState.DRAINING, InstanceState.SUSPENDING, InstanceState.ASLEEP})


@dataclass(slots=True)
class ReadyInstances:
    """``usable`` are those that get requests; ``outstanding`` counts what each of them has, of any epoch and version.

    ``unread`` has the bytes of prompts of streams that have not begun (``standby.gateway.unread``). ``on_open`` hears of each
    breaker that opens.
    """

    outstanding: dict[str, int] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    usable: dict[str, ReadyInstance] = field(default_factory=dict)
    backends: dict[str, Pool] = field(default_factory=dict)
    on_open: Callable[[], None] = lambda: None
    _traffic: TrafficPolicy = _USUAL_TRAFFIC
    _guarded: bool = True
    _parts: tuple[RoutePart, ...] = ()
    _count: TokenCounter | None = None
    _only: Pool | None = None
    _all: dict[str, ReadyInstance] = field(default_factory=dict)
    _ejected: dict[str, int] = field(default_factory=dict)
    _ticket: int = 0
    _lengths: Lengths = prompt_lengths.UNKNOWN
    _failing: str = ""
    _woke_at: float = -math.inf

    # ---- what the directory tells ------------------------------------------------------------------------------

    def changed(self, record: Instance, seen: float, *, removed: bool) -> None:
        """Take up what a node says of an instance; ``seen``: when this epoch was first heard of."""
        known = self._all.get(record.id)
        usable = not removed and record.state is InstanceState.READY and self._ejected.get(record.id) != record.epoch
        if not usable:
            if self._all.pop(record.id, None) is not None or record.state is InstanceState.FAILED:
                self._left(record, removed=removed)
        elif known is None or known.record.epoch != record.epoch:
            self._ejected.pop(record.id, None)
            self._all[record.id] = ReadyInstance(record, seen, self._traffic)
        else:
            known.take_up(record, self._traffic)
        if removed:
            self._ejected.pop(record.id, None)
        self._sort_out()

    def serve(self, route: Route) -> None:
        """From now on prefer instances of the versions of the route's parts; where one is empty, all of it are alike."""
        self._traffic, self._parts, self._count = route.traffic, route.parts, route.count_tokens
        self._guarded = route.traffic.tier is not Tier.BEST_EFFORT
        failure = route.endpoint.failure
        self._failing = failure.backend if failure is not None and failure.variant in ("", route.variant.name) else ""
        for part in route.parts:
            pool = self.backends.get(part.backend)
            if pool is None or pool.engine is not part.engine:
                self.backends[part.backend] = Pool(part.backend, part.engine, self.outstanding, self.unread)
        for ready in self._all.values():
            ready.take_up(ready.record, self._traffic)
        self._sort_out()

    def find(self, instance: str, epoch: int) -> ReadyInstance | None:
        """Return the instance if it is still ready at this epoch."""
        ready = self._all.get(instance)
        return ready if ready is not None and ready.record.epoch == epoch else None

    def eject(self, instance: str, epoch: int) -> None:
        """Ignore this epoch from now on, whatever the records say: it is over."""
        self._ejected[instance] = epoch
        del self._all[instance]
        self._sort_out()

    # ---- what a request does -----------------------------------------------------------------------------------

    def choose(
        self,
        now: float,
        wanted: str | None = None,
        ask: Ask = NOTHING,
        priority: Priority = Priority.NORMAL,
        tried: frozenset[str] = _NOBODY,
        waited_s: float = 0.0,
    ) -> Choice:
        """Return which instance the next request goes to, and why; one that is a ``probe`` must be taken as one.

        ``wanted``, while it is usable and not broken, is the only one asked. ``tried``: where the request failed already.
        """
        self._ticket = ticket = self._ticket + 1
        if wanted is not None:
            bound = self.usable.get(wanted)
            if bound is not None and wanted not in tried and not (self._guarded and bound.breaker.phase is not Phase.CLOSED):
                outstanding = self.outstanding.get(wanted, 0)
                choice = choose((bound.candidate(outstanding, now, self._guarded),), now, ticket)
                return choice._replace(backend=bound.record.backend)
        only = self._only
        if only is None:
            choice = self._among_engines(now, ask, priority, tried, waited_s)
        else:
            choice = only.choose(now, ticket, ask, priority, tried, guarded=self._guarded)
        if choice.instance is None and self.usable:
            return self._last_resort(choice, now)
        return choice

    def took(self, instance: str, *, probe: bool = False) -> None:
        """One more request is with the instance."""
        self.outstanding[instance] = self.outstanding.get(instance, 0) + 1
        if probe:
            ready = self.usable[instance]
            ready.breaker = breaker.probing(ready.breaker)

    def gave_back(
        self, instance: str, epoch: int, result: Result | None, now: float, *, probe: bool = False, prompt_bytes: int = 0
    ) -> None:
        """One request of the instance has ended; ``probe``, as it was taken. ``result`` None: nobody knows how."""
        in_flight = self.outstanding[instance]
        if in_flight > 1:
            self.outstanding[instance] = in_flight - 1
        else:
            del self.outstanding[instance]
        ready = self._all.get(instance)
        if ready is None or ready.record.epoch != epoch:
            return
        if (self._guarded or probe) and ready.ended(result, now, probe=probe):
            self.on_open()
        pool = self.backends.get(ready.record.backend)
        if result is None or pool is None:
            return
        pool.ended(ready, result, in_flight, now)
        if len(self._parts) > 1 and result.kind is ResultKind.OK and result.prompt_tokens is not None:
            self._lengths = prompt_lengths.counted(self._lengths, prompt_bytes, result.prompt_tokens)

    # ---- what others read --------------------------------------------------------------------------------------

    def wanted_backend(self, ask: Ask, priority: Priority, now: float) -> str:
        """Return the engine that a request which must wait should wake; empty where there is only one."""
        if len(self._parts) < 2:
            return ""
        views = []
        for part in self._parts:
            pool = self.backends[part.backend]
            pool.look(now, self._traffic.hybrid.return_after, guarded=self._guarded)
            views.append(pool.asleep(failing=part.backend == self._failing and not pool.members))
        output = self._output(ask)
        return first_to_wake(views, self._tokens(ask, views, priority, output), output, self._traffic, priority)

    def better_asleep(self, ask: Ask, priority: Priority, now: float) -> str:
        """Return an engine that has no instance and should have this request, which another one serves; empty: none.

        Once in ``WAKE_EVERY_S`` at most: it is asked for, and its own requests keep it awake from then on.
        """
        if len(self._parts) < 2 or ask.adapter is not None or now - self._woke_at < WAKE_EVERY_S:
            return ""
        up: list[Pool] = []
        down: list[Pool] = []
        for part in self._parts:
            pool = self.backends[part.backend]
            pool.look(now, self._traffic.hybrid.return_after, guarded=self._guarded)
            (up if pool.members else down).append(pool)
        if not up or not down:
            return ""
        ready = [pool.view(now) for pool in up]
        asleep = [pool.asleep(failing=pool.label == self._failing) for pool in down]
        output = self._output(ask)
        tokens = self._tokens(ask, [*ready, *asleep], priority, output)
        found = worth_waking(ready, asleep, tokens, output, self._traffic, priority)
        if found:
            self._woke_at = now
        return found

    def sleeps(self, backend: str) -> bool:
        """Whether the engine has no usable instance; of a variant with one engine, whether there is none at all."""
        pool = self.backends.get(backend) if len(self._parts) > 1 else None
        return not self.usable if pool is None else not pool.members

    def service_s(self, now: float) -> float | None:  # noqa: ARG002 # measured means do not age by themselves
        """Return the mean seconds for which a request holds a slot; None: not known yet."""
        known = [
            (pool.service_s, slots)
            for pool in self.backends.values()
            if pool.service_s is not None and (slots := sum(member.slots for member in pool.members))
        ]
        if not known:
            return None
        # Slots of quick engines come free more often.
        rate = sum(slots / max(1e-6, service_s) for service_s, slots in known)
        return sum(slots for _, slots in known) / rate

    @property
    def slots(self) -> int:
        """Requests that the doors of all usable ones let in at once."""
        return sum(ready.record.slots for ready in self.usable.values())

    def has_free(self, now: float, *, but: ReadyInstance) -> bool:
        """Whether another one has a slot free, as far as is known here, and is not paused."""
        return any(ready is not but and ready.blocked_until <= now and self._free(ready) for ready in self.usable.values())

    @property
    def has_room(self) -> bool:
        """Whether one has a slot free, as far as is known here; it may be paused."""
        return any(self._free(ready) for ready in self.usable.values())

    # ---- inside ------------------------------------------------------------------------------------------------

    def _among_engines(self, now: float, ask: Ask, priority: Priority, tried: frozenset[str], waited_s: float) -> Choice:
        pools = []
        for pool in self.backends.values():
            pool.look(now, self._traffic.hybrid.return_after, guarded=self._guarded)
            if pool.members:
                pools.append(pool)
        if not pools:
            return Choice(None, "no engine is ready")
        probe = self._due_probe(pools, now, priority, tried)
        if probe is not None:
            return probe
        # An engine whose every instance was tried is asked last, whatever is known of it.
        fresh = [pool for pool in pools if not all(member.record.id in tried for member in pool.members)] or pools
        views = [pool.view(now) for pool in fresh]
        output = self._output(ask)
        chosen = choose_backend(
            views,
            self._tokens(ask, views, priority, output),
            output,
            self._traffic,
            priority,
            ticket=self._ticket,
            now=now,
            waited_s=waited_s,
        )
        if chosen.hold_s:
            return Choice(None, chosen.reason, now + chosen.hold_s, chosen.order[0])
        retry_at = math.inf
        for label in chosen.order:
            choice = self.backends[label].choose(now, self._ticket, ask, priority, tried, guarded=self._guarded)
            if choice.instance is not None:
                passed = "" if label == chosen.order[0] else f", which has no slot free, so {label}"
                return choice._replace(backend=label, reason=f"{chosen.reason}{passed}; {choice.reason}")
            if choice.retry_at is not None:
                retry_at = min(retry_at, choice.retry_at)
        return Choice(None, chosen.reason, None if retry_at == math.inf else retry_at)

    def _due_probe(self, pools: list[Pool], now: float, priority: Priority, tried: frozenset[str]) -> Choice | None:
        """Return a broken instance of another engine whose probe is due: by the usual comparison it would get no request."""
        if not self._guarded or tried or priority is Priority.URGENT:
            return None
        for pool in pools:
            due = pool.due_probe(now)
            if due is not None:
                return Choice(due.record.id, f"probe: {due.permit(now).reason}", None, pool.label, True)
        return None

    def _last_resort(self, choice: Choice, now: float) -> Choice:
        """Where every instance is broken, let the one be probed whose time comes first: the last is never abandoned."""
        if not self._guarded or any(ready.breaker.phase is Phase.CLOSED for ready in self.usable.values()):
            return choice
        found = [ready for pool in self.backends.values() if (ready := pool.last_resort(now)) is not None]
        if not found:
            return choice
        ready = min(found, key=lambda one: one.breaker.open_until)
        reason = f"probe: every instance is broken, and this one comes first ({ready.breaker.reason})"
        return Choice(ready.record.id, reason, None, ready.record.backend, True)

    def _tokens(self, ask: Ask, views: list[BackendView], priority: Priority, output: float) -> TokenCount:
        """Count the prompt's tokens where that can change the choice, and a tokenizer is there; else estimate."""
        undecided = not bytes_decide(views, ask.prompt_bytes, output, self._traffic, priority)
        counted = self._count(ask) if undecided and self._count is not None else None
        if counted is not None:
            return counted
        return TokenCount(prompt_lengths.tokens_of(self._lengths, ask.prompt_bytes))

    def _output(self, ask: Ask) -> float:
        known = [pool.output for pool in self.backends.values() if pool.output is not None]
        usual = sum(known) / len(known) if known else _USUAL_OUTPUT
        return usual if ask.max_tokens is None else min(usual, float(ask.max_tokens))

    def _free(self, ready: ReadyInstance) -> bool:
        return self.outstanding.get(ready.record.id, 0) < ready.record.slots

    def _left(self, record: Instance, *, removed: bool) -> None:
        """An instance is ready no more: in order, or its engine has failed."""
        pool = self.backends.get(record.backend)
        if pool is not None and not removed:
            pool.broke = record.state not in _IN_ORDER

    def _sort_out(self) -> None:
        """Choose those of the present versions; all while there is none.

        An update brings its instances up beside those that serve: they get requests when it takes over, and those before
        it only until then. Two versions never serve together, of whichever engine they are.
        """
        versions = {part.backend: part.version for part in self._parts}
        present = {name: ready for name, ready in self._all.items() if _is_present(ready.record, versions)}
        self.usable = usable = present or self._all
        members: dict[str, list[ReadyInstance]] = {label: [] for label in versions}
        for ready in usable.values():
            members.setdefault(ready.record.backend, []).append(ready)
        for label in [label for label in self.backends if label not in members]:
            del self.backends[label]
        for label, held in members.items():
            pool = self.backends.get(label)
            if pool is None:
                engine = held[0].record.engine if held else None
                pool = self.backends[label] = Pool(label, engine, self.outstanding, self.unread)
            pool.hold(held)
        self._only = next(iter(self.backends.values())) if len(self.backends) == 1 else None


def _is_present(record: Instance, versions: dict[str, str]) -> bool:
    version = versions.get(record.backend)
    return version is not None and (not version or record.version in ("", version))
