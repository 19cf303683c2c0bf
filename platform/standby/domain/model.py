"""A model: a registered artifact with a pinned manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from standby.domain.values import Record, Value


class ModelFormat(StrEnum):
    """What kind of bytes the artifact holds."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"


class EngineKind(StrEnum):
    """Which engine serves the model."""

    LLAMA_CPP = "llama_cpp"
    VLLM = "vllm"
    TENSORRT_LLM = "tensorrt_llm"
    FAKE = "fake"


class ObjectRef(Value):
    """One object of an artifact as it was when it was registered."""

    key: str = Field(description="full object key in the bucket, or absolute path for file://")
    path: str = Field(description="path below the artifact's folder; never absolute, never with '..'")
    size: int = Field(ge=0, description="bytes")
    etag: str = ""
    version_id: str | None = None
    modified_at: float | None = Field(default=None, description="seconds since the epoch, as the store says")


class SourceOptions(Value):
    """How to reach the store; never a secret: credentials come from the environment of the process that reads."""

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = True
    anonymous: bool = False


class ModelFacts(Value):
    """What the headers say about the model."""

    architecture: str = ""
    name: str = ""
    parameter_count: int | None = None
    context_length: int | None = None
    quantisation: str = ""
    has_chat_template: bool = False
    has_tokenizer: bool = False


class Manifest(Value):
    """Exactly what was taken from the source: the version of the model."""

    source_uri: str
    source: SourceOptions = SourceOptions()
    format: ModelFormat
    objects: tuple[ObjectRef, ...] = Field(min_length=1)
    facts: ModelFacts = ModelFacts()

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(item.size for item in self.objects)

    @property
    def digest(self) -> str:
        """Name of this version: SHA-256 over every object's path, size, ETag and version id, in hex."""
        lines = sorted(f"{o.path}\0{o.size}\0{o.etag}\0{o.version_id or ''}\0{o.modified_at or ''}" for o in self.objects)
        return hashlib.sha256("\n".join([self.source_uri, *lines]).encode()).hexdigest()


class Model(Record):
    """A tenant's registered model."""

    tenant: str
    name: str
    manifest: Manifest
    engine: EngineKind
    engine_options: Mapping[str, str | int | float | bool] = Field(default_factory=dict)
    created_at: float
