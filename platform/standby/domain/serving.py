"""Which engine serves which of a model's weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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


def gpus_of(options: Mapping[str, str | int | float | bool]) -> int:
    """Return how many GPUs one instance computes on, where its engine computes on GPUs: ``devices``, ``tensor_parallel``."""
    found = options.get("devices", options.get("tensor_parallel", 1))
    return max(1, found) if isinstance(found, int) else 1
