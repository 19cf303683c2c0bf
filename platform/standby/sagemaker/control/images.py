"""The container of a model, and what its image's name says, which is all that is used of that: none runs here. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from standby.domain.model import EngineKind

# The first word that the image's name or tag holds decides.
_WORDS: Final = (
    ("tensorrtllm", EngineKind.TENSORRT_LLM),
    ("tensorrt-llm", EngineKind.TENSORRT_LLM),
    ("trtllm", EngineKind.TENSORRT_LLM),
    ("vllm", EngineKind.VLLM),
    ("llama.cpp", EngineKind.LLAMA_CPP),
    ("llama-cpp", EngineKind.LLAMA_CPP),
    ("llamacpp", EngineKind.LLAMA_CPP),
)


def container_of(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one container of a CreateModel request."""
    primary: Mapping[str, Any] | None = request.get("PrimaryContainer")
    if primary is not None:
        return primary
    containers = request.get("Containers") or [{}]
    first: Mapping[str, Any] = containers[0]
    return first


def engine_of(image: str) -> EngineKind | None:
    """Return the engine that the image's name speaks of; a hint, which gives way where that engine cannot serve the model."""
    name = image.rpartition("/")[2].lower()
    return next((engine for word, engine in _WORDS if word in name), None)
