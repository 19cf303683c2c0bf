"""W3C trace context: ``traceparent`` and ``tracestate``, read strictly and written. Pure.

Source: https://www.w3.org/TR/trace-context-2/ (levels 1 and 2 have the same form). What breaks a rule counts as not there: the
request begins a trace of its own, and the ``tracestate`` beside it goes with it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
SAMPLED: Final = 1
RANDOM: Final = 2  # level 2: the trace id's lower bits were drawn at random
MOST_STATE: Final = 512

_KNOWN: Final = SAMPLED | RANDOM
_FORM: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[^\r\n]*)?")
_NEVER: Final = b"ff"
_FIRST: Final = b"00"
_MEMBERS_END: Final = b","

Headers = list[tuple[bytes, bytes]]


class Context(NamedTuple):
    """A span as others name it: the trace's id (128 bits), its own (64 bits), and the flags that are known."""

    trace: int
    span: int
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether whoever sent it keeps the trace."""
        return bool(self.flags & SAMPLED)


class Head(NamedTuple):
    """A request's trace at its arrival; ``parent``: the caller's span, 0 where there is none; ``path``: what was asked.

    ``sampled`` is what was decided by then: errors and cold starts are kept beyond it. ``told``: the caller named the trace;
    ``broken``: he tried to, against the rules, and nobody behind the gateway may read it more kindly.
    """

    trace: int
    parent: int
    flags: int
    sampled: bool
    state: bytes
    path: str
    broken: bool = False

    @property
    def told(self) -> bool:
        """Whether the trace is the caller's."""
        return self.parent != 0


def parse(value: bytes) -> Context | None:
    """Return what a ``traceparent`` says, or None where it breaks a rule.

    A later version may have more behind the flags; ff is none, and of an id all zeros are none.
    """
    found = _FORM.fullmatch(value)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == _NEVER or (version == _FIRST and more is not None):
        return None
    context = Context(int(trace, 16), int(span, 16), int(flags, 16) & _KNOWN)
    return context if context.trace and context.span else None


def written(context: Context) -> bytes:
    """Return it as a ``traceparent``."""
    return b"00-%032x-%016x-%02x" % context


def read(headers: Iterable[tuple[bytes, bytes]]) -> tuple[Context | None, bytes]:
    """Return what a request's headers (names in lower case) say, and its ``tracestate``, cut to what must be passed on."""
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == TRACEPARENT:
            parents.append(value)
        elif name == TRACESTATE:
            states.append(value)
    # Two of them may contradict each other: none of them is believed.
    context = parse(parents[0]) if len(parents) == 1 else None
    return context, b"" if context is None else state_of(states)


def state_of(values: Iterable[bytes]) -> bytes:
    """Return one ``tracestate`` of 512 bytes at most: of a longer one the last members are left out, as the oldest."""
    state = _MEMBERS_END.join(value for value in values if value)
    return state if len(state) <= MOST_STATE else state[: MOST_STATE + 1].rpartition(_MEMBERS_END)[0]


def replaced(headers: Headers, context: Context, state: bytes) -> Headers:
    """Return the headers with this context in place of what they say, behind all others: doors look for it there."""
    kept = without(headers)
    kept.append((TRACEPARENT, written(context)))
    if state:
        kept.append((TRACESTATE, state))
    return kept


def without(headers: Headers) -> Headers:
    """Return the headers without what they say of a trace."""
    return [header for header in headers if header[0] not in (TRACEPARENT, TRACESTATE)]


def of_activation(activation: str) -> Context:
    """Return the span of a climb: made of its id, so that a gateway can name it without having talked with the node."""
    digest = hashlib.blake2b(activation.encode(), digest_size=24, person=b"standby-climb").digest()
    return Context(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1, SAMPLED)
