"""Ready instances of a variant under a policy, with a clock that only moves by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from standby.domain.ask import NOTHING, Ask
from standby.domain.endpoint import Variant
from standby.domain.model import EngineKind
from standby.domain.traffic import BreakerPolicy, BreakerRule, HybridChoice, HybridPolicy, TrafficPolicy
from standby.gateway.hybrid import TokenCount
from standby.gateway.ready_instances import ReadyInstances
from standby.gateway.results import Result, ResultKind
from standby.gateway.route import Route, RoutePart
from standby.gateway.router import Choice
from support.builders import an_endpoint, an_instance

OK = Result(ResultKind.OK, 0.5, 0.1, 100, 20, True)
ENGINE = Result(ResultKind.ENGINE, 0.1)
CONNECT = Result(ResultKind.CONNECT, 0.01)
BREAKER = BreakerPolicy(rules=(BreakerRule(window=30.0, requests=3, failures_in_a_row=3),), open_for=5.0)
VLLM, LLAMA = RoutePart("vllm", EngineKind.VLLM, "v1", 4), RoutePart("llama_cpp", EngineKind.LLAMA_CPP, "v1", 4)
TRT = RoutePart("trt", EngineKind.TENSORRT_LLM, "v1", 4)
THRESHOLDS = HybridChoice(policy=HybridPolicy.THRESHOLDS, return_after=10.0)


@dataclass
class Rig:
    """Instances under a policy, with a clock that only moves by hand."""

    traffic: TrafficPolicy = field(default_factory=lambda: TrafficPolicy(breaker=BREAKER))
    parts: tuple[RoutePart, ...] = ()
    now: float = 100.0
    counted: list[Ask] = field(default_factory=list)
    tokens: int | None = None

    def __post_init__(self) -> None:
        self.ready = ReadyInstances()
        self.serve()

    def serve(self, **changes: Any) -> None:
        given: dict[str, Any] = {"traffic": self.traffic, "parts": self.parts, "count_tokens": self._count, **changes}
        self.ready.serve(Route(given.pop("endpoint", an_endpoint()), Variant(model="m"), **given))

    def has(self, instance: str, *, removed: bool = False, **changes: Any) -> None:
        self.ready.changed(an_instance(id=instance, **changes), self.now, removed=removed)

    def ask(self, *, result: Result | None = OK, **asked: Any) -> Choice:
        """One request from its choice to its end, if it was chosen."""
        choice = self.ready.choose(self.now, **asked)
        if choice.instance is not None:
            epoch = self.ready.usable[choice.instance].record.epoch
            self.ready.took(choice.instance, probe=choice.probe)
            prompt_bytes = asked.get("ask", NOTHING).prompt_bytes
            self.ready.gave_back(choice.instance, epoch, result, self.now, probe=choice.probe, prompt_bytes=prompt_bytes)
        return choice

    def fill(self, instance: str, requests: int) -> None:
        for _ in range(requests):
            self.ready.took(instance)

    def fail(self, instance: str, result: Result = ENGINE, times: int = 3) -> None:
        epoch = self.ready.usable[instance].record.epoch
        for _ in range(times):
            self.ready.took(instance)
            self.ready.gave_back(instance, epoch, result, self.now)

    def _count(self, ask: Ask) -> TokenCount | None:
        self.counted.append(ask)
        return None if self.tokens is None else TokenCount(self.tokens, estimated=False)


def hybrid(**changes: Any) -> Rig:
    """Two engines with an instance each; thresholds, so that llama.cpp is the usual one."""
    rig = Rig(TrafficPolicy(breaker=BREAKER, hybrid=THRESHOLDS), (VLLM, LLAMA), **changes)
    rig.has("v", backend="vllm", version="v1", engine=EngineKind.VLLM)
    rig.has("l", backend="llama_cpp", version="v1", engine=EngineKind.LLAMA_CPP)
    return rig
