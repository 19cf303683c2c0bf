"""What is served: which engine serves which of a model's weights, and an endpoint's variants as they are now. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from standby.domain.endpoint import Backend, EndpointConfig, ScalePolicy, Variant, VariantCapacity
from standby.domain.model import EngineKind, Manifest, Model, ModelFormat

# Real engines, the preferred one first. The fake one serves everything and is used only where it is asked for.
PREFERENCE: Final = (EngineKind.LLAMA_CPP, EngineKind.VLLM, EngineKind.TENSORRT_LLM)
_USUAL: Final[Mapping[ModelFormat, EngineKind]] = {
    ModelFormat.GGUF: EngineKind.LLAMA_CPP,
    ModelFormat.SAFETENSORS: EngineKind.VLLM,
    ModelFormat.PICKLE: EngineKind.VLLM,
}


def default_engine(manifest: Manifest) -> EngineKind:
    """Return the first engine that can serve ``manifest``; the usual one of its format where none can."""
    able = (kind for kind in PREFERENCE if kind not in manifest.refusals)
    return next(able, _USUAL[manifest.format])


def engine_for(model: Model, manifest: Manifest) -> EngineKind:
    """Return the engine for some of the model's weights: the model's own, where it can; else what can."""
    return model.engine if model.engine not in manifest.refusals else default_engine(manifest)


def with_weights(model: Model, weights: str | None) -> Model | None:
    """Return ``model`` as an instance serves it: the chosen weights are its manifest, and it has no others.

    None when it has no weights of that name. The engine's options are the model's own engine's: another engine gets none.
    """
    manifest = model.manifest if weights is None else model.weights.get(weights)
    if manifest is None:
        return None
    if weights is None and not model.weights:
        return model
    engine = engine_for(model, manifest)
    options = model.engine_options if engine is model.engine else {}
    return model.model_copy(update={"manifest": manifest, "engine": engine, "engine_options": options, "weights": {}})


def version_of(model: Model, variant: Variant) -> str:
    """Return what tells instances that may stand in for each other from others.

    ``model`` as ``with_weights`` returns it; ``variant`` as its config has it, without later changes of capacity: those
    never need another process.
    """
    options = json.dumps(sorted(model.engine_options.items())) if model.engine_options else "[]"
    return _version(model.engine, options, model.manifest.digest, variant.memory_mb, variant.policy.slots)


@lru_cache(maxsize=16384)
def _version(engine: EngineKind, options: str, digest: str, memory_mb: int | None, slots: int) -> str:
    told = [engine.value, json.loads(options), digest, memory_mb, slots]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def variants_now(config: EndpointConfig, capacities: Mapping[str, VariantCapacity]) -> tuple[Variant, ...]:
    """Return the config's variants with what was changed of them while the endpoint runs."""
    return tuple(_changed(variant, capacities.get(variant.name)) for variant in config.variants)


def _changed(variant: Variant, capacity: VariantCapacity | None) -> Variant:
    if capacity is None:
        return variant
    policy = variant.policy
    min_ready = policy.min_ready if capacity.min_ready is None else capacity.min_ready
    most = policy.max_instances if capacity.max_instances is None else capacity.max_instances
    most = max(most, min_ready)
    limit = variant.concurrency_limit if capacity.concurrency_limit is None else capacity.concurrency_limit
    slots = policy.slots
    if capacity.concurrency_limit is not None:
        # A limit that was raised is reached: the doors let more in than the engine was started for, and it queues them.
        slots = max(slots, math.ceil(capacity.concurrency_limit / most))
    changed = {
        "min_ready": min_ready,
        "max_instances": most,
        "slots": slots,
        "scale_out_at": policy.scale_out_at if capacity.scale_out_at is None else capacity.scale_out_at,
        "scale_in_after": policy.scale_in_after if capacity.scale_in_after is None else capacity.scale_in_after,
    }
    return variant.model_copy(
        update={
            "weight": variant.weight if capacity.weight is None else capacity.weight,
            "concurrency_limit": limit,
            "provisioned": variant.provisioned if capacity.provisioned is None else capacity.provisioned,
            "policy": ScalePolicy.model_validate({**policy.model_dump(), **changed}),
        }
    )


def gpus_of(options: Mapping[str, str | int | float | bool]) -> int:
    """Return how many GPUs one instance computes on, where its engine computes on GPUs: ``devices``, ``tensor_parallel``."""
    found = options.get("devices", options.get("tensor_parallel", 1))
    return max(1, found) if isinstance(found, int) else 1


def parts_of(variant: Variant) -> tuple[tuple[Backend | None, Variant], ...]:
    """Return the variant as plain ones, one for each backend; itself where it has none.

    Each has its backend's weights, slots and bounds, and no backends; the name stays the variant's. What the variant
    itself keeps ready is kept of the preferred backend, the first.
    """
    if not variant.backends:
        return ((None, variant),)
    return tuple((backend, _part(variant, backend)) for backend in variant.backends)


def labels_of(variant: Variant) -> tuple[str, ...]:
    """Return the names under which demand for a variant is counted: each backend's, then its own."""
    return (*(part_label(variant.name, backend.label) for backend in variant.backends), variant.name)


def part_label(variant: str, backend: str) -> str:
    """Return the name under which demand for a variant's backend is counted."""
    return f"{variant}/{backend}" if backend else variant


def model_of_part(model: Model, part: Variant, backend: Backend | None) -> Model | None:
    """Return ``model`` as the instances of one part serve it; None where it has no such weights."""
    served = with_weights(model, part.weights)
    if served is None or backend is None:
        return served
    options = backend.engine_options
    if options is None:
        options = model.engine_options if model.engine is backend.engine else {}
    return served.model_copy(update={"engine": backend.engine, "engine_options": dict(options), "weights": {}})


def _part(variant: Variant, backend: Backend) -> Variant:
    policy = variant.policy
    most = policy.max_instances if backend.max_instances is None else backend.max_instances
    preferred = backend is variant.backends[0]
    kept = max(backend.min_ready, policy.min_ready) if preferred else backend.min_ready
    changed = {
        "slots": policy.slots if backend.slots is None else backend.slots,
        "min_ready": kept,
        "max_instances": max(most, kept),
    }
    return variant.model_copy(
        update={
            "backends": (),
            "weights": backend.weights,
            "memory_mb": variant.memory_mb if backend.memory_mb is None else backend.memory_mb,
            "policy": ScalePolicy.model_validate({**policy.model_dump(), **changed}),
        }
    )
