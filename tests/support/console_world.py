"""What the console's feed says, made up: a deployment as one sees it, a crowd of a thousand endpoints, and a hostile one."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator
from typing import Any, Final

Json = dict[str, Any]

TENANT: Final = "000000000001"
GIB: Final = 1024**3
RUNGS: Final = ("cold", "staged", "zygote", "asleep", "ready")
# name, model, rung, requests a second, resident GiB, words
_PLACES: Final = (
    ("support-chat", "llama-3.1-8b", "ready", 14.2, 15.8, "ready: 14 requests a second, 4 of 8 slots are busy"),
    ("code-review", "qwen2.5-coder-7b", "ready", 5.1, 14.6, "ready: kept, the next request is expected in 2 s"),
    ("search-rewrite", "smollm2-135m", "ready", 31.7, 0.4, "ready: 32 requests a second on two instances"),
    ("legal-summaries", "mistral-7b-v0.3", "asleep", 0.0, 1.1, "asleep: idle for 4 min, wakes in about 0.6 s"),
    ("invoice-fields", "qwen2.5-3b", "asleep", 0.0, 0.7, "asleep: idle for 11 min, wakes in about 0.4 s"),
    ("meeting-notes", "phi-3.5-mini", "asleep", 0.0, 0.9, "asleep: nothing before 09:00 by its habits"),
    ("translate-de", "gemma-2-9b", "zygote", 0.3, 0.2, "climbing: weights are being loaded"),
    ("moderation", "llama-guard-3-1b", "zygote", 0.0, 0.2, "zygote: forks in about 1.2 s"),
    ("product-copy", "mistral-nemo-12b", "staged", 0.0, 0.0, "staged: bytes are on n2's disk"),
    ("nightly-report", "qwen2.5-14b", "staged", 0.0, 0.0, "staged: batch work begins at 02:00"),
    ("sql-helper", "sqlcoder-7b", "staged", 0.0, 0.0, "staged: bytes are on n1's disk"),
    ("voice-intent", "smollm2-360m", "cold", 0.1, 0.0, "climbing: 41 % of 0.7 GB fetched"),
    ("archive-qa", "llama-3.1-8b", "cold", 0.0, 0.0, "at zero: bytes lie in the store"),
    ("grant-writer", "gemma-2-27b", "cold", 0.0, 0.0, "at zero: bytes lie in the store"),
    ("tutor-fr", "mistral-7b-v0.3", "cold", 0.0, 0.0, "at zero: nothing asked for 6 h"),
)
_ON_THE_WAY: Final = {"translate-de": ("starting", 0.64), "voice-intent": ("fetching", 0.41)}
_AT_ZERO: Final = frozenset({"archive-qa", "grant-writer", "tutor-fr"})
_PHASES: Final = {
    "asleep": {"queued": 4, "placed": 9, "loaded": 380, "probed": 96, "first_token": 58},
    "zygote": {"queued": 5, "placed": 12, "forked": 61, "loaded": 1150, "captured": 420, "probed": 110, "first_token": 64},
    "staged": {"queued": 4, "placed": 11, "forked": 88, "loaded": 2240, "captured": 1310, "probed": 120, "first_token": 71},
    "cold": {
        "queued": 6,
        "placed": 14,
        "fetched": 3900,
        "forked": 92,
        "loaded": 2300,
        "captured": 1290,
        "probed": 118,
        "first_token": 69,
    },
}


def demo_world(now: float | None = None) -> Json:
    """A deployment of three nodes in the middle of its day."""
    at = time.time() if now is None else now
    dice = random.Random(8)
    endpoints = [_endpoint(dice, *place) for place in _PLACES]
    instances = list(_instances(at))
    return {
        "at": at,
        "since": at - 26 * 3600,
        "gateway": "gateway/g1",
        "tenant": TENANT,
        "admin": True,
        "bus": {"connected": True, "away_s": 0},
        "totals": totals(endpoints, instances),
        "endpoints": endpoints,
        "instances": instances,
        "nodes": list(_nodes(instances)),
        "activations": list(_activations(at)),
        "decisions": list(_decisions(at)),
        "events": list(_events(at)),
        "savings": _savings(at),
    }


def crowd(count: int, seed: int = 1) -> Json:
    """A deployment of ``count`` endpoints, most of them with an instance."""
    dice = random.Random(seed)
    world = demo_world()
    world["endpoints"] = [
        _endpoint(dice, f"tenant-app-{n:04d}", "m", RUNGS[n % 5], dice.random() * 9, 0.5, "as it is") for n in range(count)
    ]
    world["instances"] = [
        _instance(f"i-{n:06d}", f"tenant-app-{n:04d}", RUNGS[n % 5], RUNGS[n % 5], world["at"], node=f"n{n % 3 + 1}")
        for n in range(count)
        if n % 5
    ]
    world["totals"] = totals(world["endpoints"], world["instances"])
    return world


def restless(world: Json, seed: int = 2) -> Iterator[Json]:
    """Changes without end: each is news of every endpoint and of a tenth of the instances, which change rungs."""
    dice = random.Random(seed)
    for step in itertools.count(1):
        endpoints = []
        for row in world["endpoints"]:
            rps = round(max(0.0, row["rps"] + dice.uniform(-1, 1)), 2)
            row.update(
                rps=rps, in_flight=dice.randrange(6), requests=row["requests"] + 1, spark=[*row["spark"][1:], round(rps)]
            )
            endpoints.append(row)
        moved = dice.sample(world["instances"], max(1, len(world["instances"]) // 10))
        for row in moved:
            rung = dice.choice(RUNGS[1:])
            row.update(rung=rung, state=rung, rung_since=world["at"] + step)
        yield {
            "at": world["at"] + step * 0.25,
            "totals": totals(world["endpoints"], world["instances"]),
            "endpoints": endpoints,
            "instances": moved,
            "decisions": [
                {"id": f"d{step}", "at": world["at"] + step, "tenant": TENANT, "endpoint": moved[0]["endpoint"], "instance": "",
                 "action": "wake", "reason": f"step {step}"}
            ],
            "events": [
                {"id": f"e{step}", "at": world["at"] + step, "kind": "transition", "tenant": TENANT,
                 "endpoint": moved[0]["endpoint"], "instance": moved[0]["id"], "text": f"step {step}"}
            ],
        }  # fmt: skip


def everywhere(value: Any, text: str) -> Any:
    """The same shape with ``text`` behind every string in it: what a hostile name or reason could put there."""
    if isinstance(value, str):
        return f"{value}{text}"
    if isinstance(value, dict):
        return {key: everywhere(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [everywhere(item, text) for item in value]
    return value


def totals(endpoints: list[Json], instances: list[Json]) -> Json:
    """The feed's totals of these rows."""
    by_rung = {rung: sum(row["rung"] == rung for row in instances) for rung in RUNGS}
    added = ("in_flight", "queued", "requests", "errors", "rps", "tokens_per_s", "resident_bytes")
    sums = {name: sum(row[name] for row in endpoints) for name in added}
    return {"endpoints": len(endpoints), "instances": len(instances), "by_rung": by_rung, **sums}


# ---- one row each ----------------------------------------------------------------------------------------------


def _endpoint(dice: random.Random, name: str, model: str, rung: str, rps: float, gib: float, words: str) -> Json:
    wave = [max(0.0, rps * (0.75 + 0.25 * math.sin(second / 7 + len(name))) * dice.uniform(0.75, 1.25)) for second in range(60)]
    first = 42.0 + 20 * dice.random() + (0 if rps else 300)
    asked = int(rps * 9000 + dice.randrange(40, 4000))
    return {
        "tenant": TENANT,
        "name": name,
        "served_name": model,
        "status": "InService",
        "rung": rung,
        "words": words,
        "in_flight": round(rps / 3.4),
        "queued": 2 if name == "translate-de" else 1 if name == "voice-intent" else 0,
        "slots": 0 if rung != "ready" else 16 if name == "search-rewrite" else 8,
        "requests": asked,
        "errors": 3 if name == "product-copy" else 0,
        "rps": rps,
        "tokens_per_s": rps * 38.5,
        "ttft_ms": {"p50": first, "p95": first * 2.6, "p99": first * 5.1},
        "resident_bytes": int(gib * GIB),
        "spark": [round(value) for value in wave],
        "saved_usd": round(dice.uniform(0.4, 9.5) if rung != "ready" else dice.uniform(0.1, 1.4), 3),
    }


def _instance(name: str, endpoint: str, rung: str, state: str, at: float, *, node: str, gib: float = 0.5, **more: Any) -> Json:
    return {
        "id": name,
        "node": node,
        "tenant": TENANT,
        "endpoint": endpoint,
        "variant": "main",
        "backend": "",
        "engine": "vllm",
        "state": state,
        "rung": rung,
        "words": f"{state} for 2 min",
        "progress": None,
        "in_flight": 0,
        "slots": 8,
        "resident_bytes": int(gib * GIB),
        "rung_since": at - 120,
        **more,
    }


def _instances(at: float) -> Iterator[Json]:
    for number, (name, _, rung, rps, gib, words) in enumerate(_PLACES):
        if name in _AT_ZERO:
            continue
        state, progress = _ON_THE_WAY.get(name, (rung, None))
        for copy in range(2 if name == "search-rewrite" else 1):
            yield _instance(
                f"i-{number}{copy}f3a",
                name,
                rung,
                state,
                at,
                node=f"n{(number + copy) % 3 + 1}",
                gib=gib,
                words=words,
                progress=progress,
                in_flight=round(rps / (6.8 if name == "search-rewrite" else 3.4)),
            )


def _nodes(instances: list[Json]) -> Iterator[Json]:
    for number in (1, 2, 3):
        name = f"n{number}"
        held = sum(row["resident_bytes"] for row in instances if row["node"] == name) + int(1.6 * GIB)
        capacity, reserved = 64 * GIB, held + 6 * GIB
        gpu = {
            "id": f"GPU-{number}a7c",
            "kind": "gpu",
            "name": "NVIDIA L4",
            "memory_total": 24 * GIB,
            "memory_used": int((5.5 + 4.2 * number) * GIB),
            "memory_reserved": int((7.0 + 4.2 * number) * GIB),
            "utilisation": 0.21 * number,
            "cordoned": "",
        }
        yield {
            "name": name,
            "mode": "draining" if number == 3 else "open",
            "words": "being emptied by an operator: kernel update" if number == 3 else "",
            "memory": {"capacity": capacity, "reserved": reserved, "resident": held, "free": capacity - reserved},
            "devices": [gpu],
            "cache_bytes": int((88 + 31 * number) * 1e9),
            "cache_capacity": int(400e9),
            "zygotes": {"vllm": {"state": "ready", "resident_bytes": int(1.4 * GIB)}},
            "instances": sum(row["node"] == name for row in instances),
        }


def _activations(at: float) -> Iterator[Json]:
    woken = (
        "support-chat",
        "code-review",
        "search-rewrite",
        "legal-summaries",
        "invoice-fields",
        "meeting-notes",
        "moderation",
    )
    for number in range(14):
        rung = ("asleep", "staged", "asleep", "cold", "zygote", "asleep", "staged")[number % 7]
        scale = 0.8 + 0.06 * ((number * 5) % 9)
        phases = {phase: round(ms * scale, 1) for phase, ms in _PHASES[rung].items()}
        ok = number != 5
        yield {
            "id": f"a-{number:04d}",
            "at": at - 40 - number * 171,
            "endpoint": woken[number % 7],
            "tenant": TENANT,
            "instance": f"i-{number}0f3a",
            "node": f"n{number % 3 + 1}",
            "from_rung": rung,
            "ok": ok,
            "error": "" if ok else "the engine was killed while it loaded: out of memory on n2",
            "phases_ms": phases,
            "total_ms": round(sum(phases.values()), 1),
        }


def _decisions(at: float) -> Iterator[Json]:
    told = (
        ("wake", "translate-de", "2 requests wait; from zygote on n1 it is ready in about 1.8 s, from staged on n2 in 3.9 s"),
        ("fetch", "voice-intent", "1 request waits and no node has its bytes; n3 has room and the quickest way to the store"),
        ("scale out", "search-rewrite", "32 requests a second are 1.7 instances' work at the aim of 70 %"),
        (
            "sleep",
            "legal-summaries",
            "idle for 60 s; the next request is expected in 7 min, asleep it holds 1.1 GiB in place of 15",
        ),
        (
            "keep",
            "code-review",
            "idle for 8 s, but 80 % of its gaps are below 25 s: falling asleep would cost more than it saves",
        ),
        ("prewarm", "meeting-notes", "weekdays at 09:00 it is asked within 40 s: staged by 08:58"),
        ("evict", "product-copy", "the zygote of n2 makes room for translate-de: it has slept for 3 h and was needed least"),
        ("sleep", "invoice-fields", "idle for 60 s; nothing is expected within the hour"),
        ("park", "nightly-report", "batch work ended: it keeps its bytes on n1's disk, and no memory"),
    )
    for number, (action, endpoint, reason) in enumerate(told):
        yield {
            "id": f"d-{number:04d}",
            "at": at - 3 - number * 47,
            "tenant": TENANT,
            "endpoint": endpoint,
            "instance": "",
            "action": action,
            "reason": reason,
        }


def _events(at: float) -> Iterator[Json]:
    told = (
        ("transition", "translate-de", "zygote → starting on n1: 2 requests wait"),
        ("fetch", "voice-intent", "41 % of 0.7 GB fetched to n3"),
        ("transition", "support-chat", "probing → ready on n1: the canary was right"),
        ("fetch", "product-copy", "24.5 GB are on n2's disk and verified"),
        ("notice", "", "n3 is being drained: kernel update"),
        ("endpoint", "search-rewrite", "InService with 2 instances"),
        ("transition", "legal-summaries", "suspending → asleep on n2: 14.2 GiB returned and confirmed"),
        ("audit", "", "key 3f09… was made by the administrator"),
        ("transition", "legal-summaries", "draining → suspending on n2"),
        ("async", "nightly-report", "Completed: 412 of 412 records"),
    )
    for number, (kind, endpoint, text) in enumerate(told * 3):
        yield {
            "id": f"e-{number:04d}",
            "at": at - 1 - number * 19,
            "kind": kind,
            "tenant": TENANT,
            "endpoint": endpoint,
            "instance": "",
            "text": text,
        }


def _savings(at: float) -> Json:
    return {
        "since": at - 26 * 3600,
        "held_gb_s": 1_482_000,
        "always_on_gb_s": 9_120_000,
        "saved_gb_s": 7_638_000,
        "held_usd": 11.86,
        "always_on_usd": 72.96,
        "saved_usd": 61.10,
        "sagemaker_serverless_usd": 38.41,
        "prices": {"host_gb_hour_usd": 0.0288, "sagemaker_gb_second_usd": 0.00002},
        "words": "Counted: host memory that instances held, second by second. Always on is the same endpoints with one "
        "instance each for the whole time. SageMaker Serverless is its published price for the requests that were served "
        "here: not measured.",
    }
