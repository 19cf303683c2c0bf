"""The ready instances of one engine of a variant, what is known of its speed, and whether it has failed as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from standby.domain.ask import Ask
from standby.domain.draw import two_of
from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.gateway import breaker, concurrency, learned, pace
from standby.gateway.breaker import Phase
from standby.gateway.hybrid import SPARED, WELL, BackendView, Health, Standing, observe
from standby.gateway.learned import Answered, Estimate
from standby.gateway.prefix import home_of
from standby.gateway.ready_instance import ReadyInstance
from standby.gateway.results import Result, ResultKind
from standby.gateway.router import Candidate, Choice, at_home, choose, least_loaded

# Each request asks for it: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_OK: Final = ResultKind.OK
_MEMORY: Final = 16
_WEIGH_EVERY: Final = 16
# A plain variant needs the estimate for its concurrency only: once it knows enough, it learns from every fourth answer,
# and fits what it learnt at every fourth of those.
_KNOWS_ENOUGH: Final = 32
_GUESSED_SERVICE_S: Final = 1.0
# An engine that failed and has no instance since is worth another start after so long; until then others are woken.
FORGIVEN_S: Final = 60.0


@dataclass(slots=True)
class Pool:
    """``outstanding`` and ``unread`` are the gateway's counts by instance, shared with whoever keeps them.

    ``service_s``: mean seconds for which a request held a slot; ``output``: mean tokens of an answer; None: not known yet.
    ``broke``: the last that was heard of it was a failure.
    """

    label: str
    engine: EngineKind | None
    outstanding: Mapping[str, int]
    unread: Mapping[str, int]
    members: list[ReadyInstance] = field(default_factory=list)
    estimate: Estimate = field(init=False)
    standing: Standing = WELL
    broke: bool = False
    service_s: float | None = None
    output: float | None = None
    _seeds: Sequence[int] = ()
    _taught: int = 0
    _ended: int = 0

    def __post_init__(self) -> None:
        self.estimate = learned.unknown(self.engine)

    def hold(self, members: list[ReadyInstance]) -> None:
        """These are its usable instances from now on."""
        self.members = members
        self._seeds = [member.seed for member in members]
        self._weigh()

    # ---- choosing ----------------------------------------------------------------------------------------------

    def choose(self, now: float, ticket: int, ask: Ask, priority: Priority, tried: frozenset[str], *, guarded: bool) -> Choice:
        """Return which of its instances gets the request, by ``router``."""
        members, outstanding = self.members, self.outstanding
        count = len(members)
        spare = priority in SPARED
        if count == 1 and not tried and ask.adapter is None:
            alone = members[0]
            load = outstanding.get(alone.record.id, 0)
            if load < alone.slots and alone.plain(now, guarded=guarded, spare=spare):
                return least_loaded(alone.record.id, load, alone.slots)
        if ask.prefix and count > 1 and not tried and ask.adapter is None:
            home = members[home_of(ask.prefix, self._seeds)]
            if home.traffic.prefix_affinity:
                choice = self._at_home(home, now, ticket, guarded=guarded, spare=spare)
                if choice is not None:
                    return choice
        if count > 2 and not tried and ask.adapter is None:
            pair = [members[place] for place in two_of(count, ticket)]
            seen = self._seen(pair, now, guarded=guarded)
            choice = choose(seen, now, ticket, spare=spare, strict=True)
            if choice.instance is not None:
                return choice
        every = self._seen(members, now, guarded=guarded)
        return choose(every, now, ticket, adapter=ask.adapter, tried=tried, spare=spare)

    def _seen(self, members: Sequence[ReadyInstance], now: float, *, guarded: bool) -> list[Candidate]:
        outstanding, unread = self.outstanding, self.unread
        return [
            member.candidate(outstanding.get(name, 0), now, guarded, unread.get(name, 0))
            for member in members
            for name in (member.record.id,)
        ]

    def last_resort(self, now: float) -> ReadyInstance | None:
        """Return the instance that may be probed first although its time has not come."""
        able = [
            member
            for member in self.members
            if breaker.may_probe(member.breaker)
            and member.blocked_until <= now
            and self.outstanding.get(member.record.id, 0) < member.slots
        ]
        return min(able, key=lambda one: one.breaker.open_until, default=None)

    def due_probe(self, now: float) -> ReadyInstance | None:
        """Return an instance whose breaker waits for a probe now."""
        for member in self.members:
            if member.breaker.phase is Phase.CLOSED or member.blocked_until > now:
                continue
            if member.permit(now).probe and self.outstanding.get(member.record.id, 0) < member.slots:
                return member
        return None

    # ---- as one of several engines -----------------------------------------------------------------------------

    def look(self, now: float, return_after: float, *, guarded: bool) -> None:
        """Find out whether it has failed as a whole, or is well again."""
        able = any(self._can(member, now, guarded=guarded) for member in self.members)
        failed = self.standing.health is Health.FAILED and not self.members
        forgiven = failed and now - self.standing.since >= max(FORGIVEN_S, return_after)
        if forgiven:
            self.broke = False
        broke = self.broke and not able
        self.standing = observe(self.standing, able=able, broke=broke, now=now, return_after=return_after, forgiven=forgiven)

    def asleep(self, *, failing: bool) -> BackendView:
        """Return it as ``hybrid`` compares it if it were up; it has no instances. ``failing``: the controller says so."""
        standing = Standing(Health.FAILED, self.standing.since) if failing else self.standing
        return BackendView(self.label, self.engine, self.estimate, standing=standing)

    def view(self, now: float) -> BackendView:
        """Return it as ``hybrid`` compares it; it has instances."""
        outstanding = self.outstanding
        loads = [outstanding.get(member.record.id, 0) for member in self.members]
        free = [
            (load / member.slots, load, member.slots)
            for load, member in zip(loads, self.members, strict=True)
            if load < member.slots and member.blocked_until <= now
        ]
        slots = sum(member.slots for member in self.members)
        service_s = _GUESSED_SERVICE_S if self.service_s is None else self.service_s
        _, others, of = min(free, default=(0.0, min(loads), self.members[0].slots))
        return BackendView(
            self.label,
            self.engine,
            self.estimate,
            others,
            of,
            0.0 if free else service_s / slots,
            all(member.pressed for member in self.members),
            self.standing,
        )

    @staticmethod
    def _can(member: ReadyInstance, now: float, *, guarded: bool) -> bool:
        if guarded and member.breaker.phase is not Phase.CLOSED:
            return False
        return not (member.unreached and member.blocked_until > now)

    # ---- learning ----------------------------------------------------------------------------------------------

    def ended(self, member: ReadyInstance, result: Result, in_flight: int, now: float) -> None:
        """Learn from how a request of a member ended; ``in_flight``: those it had, this one included."""
        several = len(self.members) > 1
        if several:
            member.pace = pace.after(member.pace, result)
        if result.kind is _OK:
            self.broke = member.unreached = False
            self._learn(member, result, in_flight, now)
        elif result.kind.failed:
            self.broke = True
            member.unreached = result.kind is not ResultKind.TIMEOUT
        self._ended += 1
        if several and self._ended % _WEIGH_EVERY == 0:
            self._weigh()

    def _learn(self, member: ReadyInstance, result: Result, in_flight: int, now: float) -> None:
        self.service_s = _mean(self.service_s, result.lasted_s)
        prompt, completion, first_byte_s = result.prompt_tokens, result.completion_tokens, result.first_byte_s
        if prompt is None or first_byte_s is None or result.lasted_s <= 0:
            return
        # Counted here: the estimate's own count fades with each surprise, and under load hardly comes that far.
        knows = not self.label and self._taught > _KNOWS_ENOUGH
        if knows and self._ended & 3 and member.slots == member.record.slots:
            return
        answer = Answered(prompt, completion or 0, in_flight - 1, first_byte_s, result.lasted_s, result.streamed)
        if completion:
            self.output = _mean(self.output, completion)
        if member.traffic.adaptive_concurrency and member.record.slots > 1:
            slow = learned.slowness(self.estimate, answer)
            member.may_run(concurrency.sampled(member.limit, member.record.slots, in_flight, slow))
        self._taught += 1
        self.estimate = learned.learn(self.estimate, answer, now, fit=not knows or not self._ended & 15)

    def _weigh(self) -> None:
        for member, speed in zip(self.members, pace.speeds([member.pace for member in self.members]), strict=True):
            member.speed = speed

    def _at_home(self, home: ReadyInstance, now: float, ticket: int, *, guarded: bool, spare: bool) -> Choice | None:
        load = self.outstanding.get(home.record.id, 0)
        mean = sum(self.outstanding.get(member.record.id, 0) for member in self.members) / len(self.members)
        if not at_home(load, mean):
            return None
        choice = choose((home.candidate(load, now, guarded),), now, ticket, spare=spare, strict=True)
        if choice.instance is None or choice.probe:
            return None
        return Choice(choice.instance, f"prompts that begin so are at home here ({load} outstanding, {mean:.1f} on average)")


def _mean(before: float | None, new: float) -> float:
    return new if before is None else before + (new - before) / _MEMORY
