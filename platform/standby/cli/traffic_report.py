"""How an endpoint's traffic policy and its engines are told to people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from standby.domain.durations import FOREVER, format_duration
from standby.domain.priority import Priority
from standby.domain.traffic import BreakerPolicy, BreakerRule, HybridChoice, HybridPolicy, QueueMode, Tier, TrafficPolicy

_TIERS: Final[Mapping[Tier, str]] = MappingProxyType(
    {
        Tier.CRITICAL: (
            "one more try elsewhere before the first byte, even where an engine may have begun; as many tries as needed where "
            "no engine can have begun; breaker"
        ),
        Tier.STANDARD: "as many tries as needed where no engine can have begun; breaker",
        Tier.BEST_EFFORT: "no second try and no breaker: only what a door refused is queued again",
    }
)


def traffic_facts(policy: TrafficPolicy, max_cold_wait: float, backends: int) -> list[tuple[str, str]]:
    """Return names and values; ``max_cold_wait`` in seconds holds for priorities without a wait of their own.

    How an engine is chosen is told only where there are several ``backends``.
    """
    facts = [
        ("tier", f"{policy.tier.value}: {_TIERS[policy.tier]}"),
        ("latency target", _target(policy)),
        ("queue", _queue(policy)),
        ("priorities", f"{policy.priority.default.value} unless asked for another, {policy.priority.highest.value} at most"),
        *((f"  {priority.value}", _priority(policy, priority, max_cold_wait)) for priority in Priority),
        ("breaker", _breaker(policy)),
        ("routing", _routing(policy)),
    ]
    if backends > 1:
        facts.append(("choice of engine", _hybrid(policy.hybrid, policy.latency_target)))
    return facts


def backend_rows(variant: Mapping[str, Any], instances: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each backend: name, engine, weights, slots, bounds, and where its instances are."""
    policy = variant["policy"]
    rows: list[tuple[str, ...]] = []
    for at, backend in enumerate(variant["backends"]):
        label = backend["name"] or backend["engine"]
        own = [one for one in instances if (one["variant"], one.get("backend", "")) == (variant["name"], label)]
        rungs = Counter(str(one["rung"]) for one in own)
        kept = max(backend["min_ready"], policy["min_ready"]) if at == 0 else backend["min_ready"]
        most = max(policy["max_instances"] if backend["max_instances"] is None else backend["max_instances"], kept)
        rows.append(
            (
                f"{label} (preferred)" if at == 0 else label,
                backend["engine"],
                backend["weights"] or "registered",
                str(backend["slots"] or policy["slots"]),
                f"{kept} to {most}",
                ", ".join(f"{count} {rung}" for rung, count in rungs.items()) or "none",
            )
        )
    return rows


def _target(policy: TrafficPolicy) -> str:
    if policy.latency_target is None:
        return "none"
    return f"first token within {format_duration(policy.latency_target)} for all but {policy.slo_violations:.1%} of requests"


def _queue(policy: TrafficPolicy) -> str:
    if policy.queue is QueueMode.STATIC:
        return "static: as many wait as queue_requests and queue_bytes say"
    if policy.latency_target is None:
        return "static: adaptive needs a latency target"
    return f"adaptive: as many wait as still meet the latency target, at least {policy.queue_floor}"


def _priority(policy: TrafficPolicy, priority: Priority, max_cold_wait: float) -> str:
    weight, age = policy.priority.weights[priority], policy.priority.ages[priority]
    wait = policy.priority.max_waits.get(priority, max_cold_wait)
    limit = "waits without limit" if wait == FOREVER else f"refused after {format_duration(wait)}"
    return f"weight {weight:g}, goes first after {format_duration(age)}, {limit}"


def _breaker(policy: TrafficPolicy) -> str:
    if policy.tier is Tier.BEST_EFFORT:
        return "none in this tier"
    breaker: BreakerPolicy = policy.breaker
    opens = "; or ".join(_rule(rule) for rule in breaker.rules) or "never"
    probes = "a good answer" if breaker.probes == 1 else f"{breaker.probes} good answers in a row"
    return (
        f"an instance gets no requests once {opens}; for {format_duration(breaker.open_for)}, doubling up to "
        f"{format_duration(breaker.longest_open)}, until {probes}"
    )


def _rule(rule: BreakerRule) -> str:
    what = "connections were refused" if rule.connect_only else "failed"
    within = f"of at least {rule.requests} requests within {format_duration(rule.window)}"
    if rule.failure_rate is not None:
        return f"{rule.failure_rate:.0%} {within} {what}"
    return f"{rule.failures_in_a_row} in a row {within} {what}"


def _routing(policy: TrafficPolicy) -> str:
    parts = ["fewest requests for its slots, faster ones first"]
    if policy.prefix_affinity:
        parts.append("prompts that begin alike to one instance")
    if policy.adaptive_concurrency:
        parts.append("fewer at once where it slows down")
    return "; ".join(parts)


def _hybrid(choice: HybridChoice, target: float | None) -> str:
    rest = (
        f"fuller than {choice.memory_limit:.0%} gets no batch and normal requests; a failed engine returns after "
        f"{format_duration(choice.return_after)} of wellness"
    )
    if choice.policy is HybridPolicy.LEARNED:
        meeting = "" if target is None else ", those first that meet the latency target"
        curious = f"{choice.explore:.0%} of normal and batch requests explore" if choice.explore else "none explores"
        return f"learned: the one that is predicted to have the whole answer first{meeting}; {curious}; {rest}"
    is_tight = target is not None and target <= choice.tight_target
    tight = "" if is_tight else f" (only with a latency target of at most {format_duration(choice.tight_target)})"
    return (
        f"thresholds: from {choice.long_prompt} prompt tokens on TensorRT-LLM, below {choice.short_prompt} vLLM{tight}, "
        f"else llama.cpp or what else there is; {rest}"
    )
