"""Replays time-stamped requests with tokens as one endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from standby.controller.simulator.fleet import Fleet, Request
from standby.controller.simulator.scalers import build, names
from standby.controller.simulator.token_report import TokenReport, token_report
from standby.controller.simulator.tokens import TokenModel
from standby.controller.simulator.trace import Trace
from standby.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class TokenSetting:
    """What such a replay is made of, apart from the policy; ``seed``: which pairs of instances the router draws."""

    trace: Trace
    model: TokenModel
    seed: int = 0

    def requests(self) -> list[Request]:
        """Return the trace's requests, unserved. Raises InvalidInput for a trace of counts."""
        trace = self.trace
        if trace.stamps is None or trace.prompt_tokens is None or trace.answer_tokens is None:
            raise InvalidInput(
                "the trace has no tokens, only counts", remedy="give one with TIMESTAMP and tokens of each request"
            )
        rows = zip(trace.stamps.tolist(), trace.prompt_tokens.tolist(), trace.answer_tokens.tolist(), strict=True)
        return [Request(*row) for row in rows]

    def replay(self, name: str) -> TokenReport:
        """Replay the trace under the policy called ``name``. Raises InvalidInput for an unknown one."""
        requests = self.requests()
        fleet = Fleet(self.model, build(name, self.model), self.seed)
        fleet.play(requests, self.trace.duration_s)
        return token_report(name, requests, fleet, self.model)

    def as_json(self, reports: Sequence[TokenReport]) -> dict[str, Any]:
        """Return what was replayed and found, as JSON holds it."""
        return {
            "trace": self.trace.functions[0],
            "requests": self.trace.invocations,
            "duration_s": self.trace.duration_s,
            "policies": [one.as_dict() for one in reports],
        }


def chosen(asked: Sequence[str], model: TokenModel) -> list[str] | None:
    """Return the policies of token replays that ``asked`` means, each once; None where it names none of them.

    Raises InvalidInput where some are and some are not: their reports have nothing in common.
    """
    known = names(model)
    found = dict.fromkeys(one for name in asked for one in (known if name == "all" else [name] if name in known else []))
    strange = [name for name in asked if name != "all" and name not in known]
    if found and strange:
        raise InvalidInput(
            f"policy {strange[0]!r} is not known for requests with tokens",
            remedy=f"use all or {', '.join(known)}; or no token policy",
        )
    return list(found) or None
