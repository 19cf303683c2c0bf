"""What an attempt's ending means: for another attempt, for the instance, and in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from standby.gateway.relay import OutcomeKind, RelayOutcome
from standby.gateway.results import ResultKind
from standby.gateway.tiers import Setback
from standby.sagemaker.runtime.contract import AnswerBroken, ContainerAnswered
from standby.wire.headers import EngineFault

# Each request asks for them: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_DONE: Final = OutcomeKind.DONE
_OK: Final = ResultKind.OK
_OF_FAULTS: Final[Mapping[str, ResultKind]] = MappingProxyType(
    {
        EngineFault.CONNECT: ResultKind.CONNECT,
        EngineFault.DIED: ResultKind.ENGINE,
        EngineFault.TIMEOUT: ResultKind.TIMEOUT,
        EngineFault.MALFORMED: ResultKind.ENGINE,
        EngineFault.ABORTED: ResultKind.CUT,  # the node's own doing
    }
)
_OF_KINDS: Final[Mapping[OutcomeKind, ResultKind]] = MappingProxyType(
    {
        OutcomeKind.REFUSED: ResultKind.REFUSED,
        OutcomeKind.CONNECT_FAILED: ResultKind.CONNECT,
        OutcomeKind.DECLINED: ResultKind.ENGINE,
        OutcomeKind.CLIENT_GONE: ResultKind.CALLER,
    }
)
_WORDS: Final[Mapping[OutcomeKind, str]] = MappingProxyType(
    {
        OutcomeKind.REFUSED: "the door refused: ",
        OutcomeKind.CONNECT_FAILED: "not connected: ",
        OutcomeKind.DECLINED: "",
        OutcomeKind.CLIENT_GONE: "the caller left: ",
    }
)
# The words of each setback in metrics; a refusal has the door's own.
LABELS: Final[Mapping[Setback, str]] = MappingProxyType(
    {Setback.NOT_BEGUN: "engine-failed", Setback.DECLINED: "declined", Setback.MAYBE_BEGUN: "engine-died"}
)


def kind_of(outcome: RelayOutcome) -> ResultKind:
    """Return whose doing the end of an attempt was."""
    if outcome.kind is _DONE:
        return _of_status(outcome.status)
    known = _OF_KINDS.get(outcome.kind)
    return known or _OF_FAULTS.get(outcome.fault, ResultKind.ENGINE)


def kind_of_error(error: BaseException) -> ResultKind:
    """Return whose doing it was that an outlet raised this while the answer came."""
    if isinstance(error, ContainerAnswered):
        return _of_status(error.status)
    return ResultKind.ENGINE if isinstance(error, AnswerBroken) else ResultKind.CUT


def setback_of(outcome: RelayOutcome) -> Setback | None:
    """Return why the attempt has brought nothing; None where its caller has got something, or has left."""
    match outcome.kind:
        case OutcomeKind.REFUSED:
            return Setback.REFUSED
        case OutcomeKind.CONNECT_FAILED:
            return Setback.NOT_BEGUN
        case OutcomeKind.ENGINE_FAILED:
            return Setback.MAYBE_BEGUN if outcome.saw else Setback.NOT_BEGUN
        case OutcomeKind.DECLINED:
            return Setback.DECLINED
        case _:
            return None


def engine_died(outcome: RelayOutcome) -> bool:
    """Whether an engine that may have had the request is no more: not a door, not a network, not one connection."""
    return outcome.saw and outcome.gone > 0


def of_the_engine(outcome: RelayOutcome) -> bool:
    """Whether a fault may be the engine's own, of a request that it saw: not that of a door that was lost before any byte."""
    if outcome.kind in (OutcomeKind.DONE, OutcomeKind.BROKEN_MID_STREAM):
        return True
    return outcome.saw and outcome.fault != ""


def words_of(outcome: RelayOutcome) -> str:
    """Return how an attempt ended, as a trace tells it."""
    if outcome.kind is _DONE:
        return answered(outcome.status)
    if outcome.kind is OutcomeKind.ENGINE_FAILED:
        seen = "the engine may have begun" if outcome.saw else "the engine saw nothing"
        return f"failed before its first byte: {outcome.reason}, {seen}"
    if outcome.kind is OutcomeKind.BROKEN_MID_STREAM:
        return f"broke off after {outcome.bytes} bytes: {outcome.reason}"
    return f"{_WORDS[outcome.kind]}{outcome.reason}"


@lru_cache(maxsize=1024)
def answered(status: int) -> str:
    """Return how a trace tells of an answer with this status."""
    return f"answered {status}"


def _of_status(status: int) -> ResultKind:
    if status < 400:
        return _OK
    return ResultKind.CALLER if status < 500 else ResultKind.ENGINE
