"""Which engines can serve a model, and why not the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from standby.domain.model import EngineKind, ModelFacts, ModelFormat

_FORMATS: Final[Mapping[EngineKind, frozenset[ModelFormat]]] = {
    EngineKind.LLAMA_CPP: frozenset({ModelFormat.GGUF}),
    EngineKind.VLLM: frozenset({ModelFormat.SAFETENSORS, ModelFormat.PICKLE}),
    EngineKind.TENSORRT_LLM: frozenset({ModelFormat.SAFETENSORS}),
}
_READS: Final[Mapping[EngineKind, str]] = {
    EngineKind.LLAMA_CPP: "llama.cpp reads GGUF only",
    EngineKind.VLLM: "vLLM reads safetensors with their config.json",
    EngineKind.TENSORRT_LLM: "TensorRT-LLM reads safetensors with their config.json",
}
# Weights that only the framework of their name can read.
_FOREIGN: Final = frozenset({"mlx", "gguf", "exl2", "exl3"})


def refusals(form: ModelFormat, facts: ModelFacts) -> Mapping[EngineKind, str]:
    """Return for each engine that cannot serve the model the reason; the fake engine serves everything."""
    found = {kind: _refusal(kind, form, facts) for kind in _FORMATS}
    return {kind: reason for kind, reason in found.items() if reason is not None}


def _refusal(kind: EngineKind, form: ModelFormat, facts: ModelFacts) -> str | None:
    if form not in _FORMATS[kind]:
        return f"the weights are {form}: {_READS[kind]}"
    packed = form is ModelFormat.GGUF
    if not facts.architecture:
        return f"{'the GGUF header' if packed else 'config.json'} names no architecture, so it cannot know how to run it"
    if not facts.has_tokenizer and packed:
        return "there is no tokenizer in the GGUF: convert the model again together with its tokenizer"
    if not facts.has_tokenizer:
        return "there is no tokenizer: upload tokenizer.json or tokenizer.model beside the weights"
    if facts.quantisation.lower() in _FOREIGN and not packed:
        return f"the quantisation {facts.quantisation!r} is not known to it"
    return None
