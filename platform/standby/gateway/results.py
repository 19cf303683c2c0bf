"""How a request that had a grant ended, as the desk, the breaker and the estimates are told of it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class ResultKind(Enum):
    """Whose doing the end was. Only ENGINE, CONNECT and TIMEOUT speak against an instance."""

    OK = "ok"
    CALLER = "caller"  # the engine answered with a 4xx, or the caller left
    ENGINE = "engine"  # it died, reset the connection, sent nonsense, or answered with a 5xx
    CONNECT = "connect"  # its door or its socket does not accept
    TIMEOUT = "timeout"  # it stayed silent beyond a limit
    REFUSED = "refused"  # the door let nothing in: the engine has seen nothing
    CUT = "cut"  # this gateway ended it

    @property
    def failed(self) -> bool:
        """Whether it speaks against the instance (a caller's mistake never does)."""
        return self in (ResultKind.ENGINE, ResultKind.CONNECT, ResultKind.TIMEOUT)


class Result(NamedTuple):
    """``first_byte_s`` and ``lasted_s`` count from the dispatch, in seconds; tokens as far as they are known.

    ``streamed``: the answer came as a stream, so that its first byte was its first token's.
    """

    kind: ResultKind
    lasted_s: float = 0.0
    first_byte_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    streamed: bool = False
