"""A model: a registered artifact with a pinned manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Final, Self
from weakref import WeakValueDictionary

from pydantic import Field, field_validator

from standby.domain.values import Record, Value


class ModelFormat(StrEnum):
    """What kind of bytes the artifact holds."""

    GGUF = "gguf"
    SAFETENSORS = "safetensors"
    PICKLE = "pickle"


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


class Compression(StrEnum):
    """How an archive is packed."""

    GZIP = "gzip"
    NONE = "none"


class Member(Value):
    """One file inside an archive, as it is called after unpacking."""

    path: str
    size: int = Field(ge=0, description="bytes")


class Archive(Value):
    """The single object of the manifest is a tar; these files are what it unpacks to."""

    compression: Compression
    members: tuple[Member, ...] = Field(min_length=1)
    wrapper: str = Field(default="", description="name of the single folder around everything, left out when unpacking")

    @property
    def total_bytes(self) -> int:
        """Bytes of all members."""
        return sum(item.size for item in self.members)


class SourceOptions(Value):
    """How to reach the store; never a secret.

    Credentials are found as the AWS SDK finds them in the process that reads, unless ``credentials`` names a pair of
    keys that the tenant has stored.
    """

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = True
    anonymous: bool = False
    credentials: str | None = Field(default=None, description="name of the tenant's stored keys")


class ModelFacts(Value):
    """What the headers say about the model."""

    architecture: str = ""
    name: str = ""
    parameter_count: int | None = None
    context_length: int | None = None
    quantisation: str = ""
    has_chat_template: bool = False
    has_tokenizer: bool = False
    tensor_count: int | None = None
    dtypes: tuple[str, ...] = Field(default=(), description="of the tensors, most bytes first")
    kv_bytes_per_token: int | None = Field(default=None, description="key-value cache at 16 bits, one sequence")


# What a manifest works out of its fields once and keeps.
_DERIVED: Final = ("total_bytes", "unpacked_bytes", "digest")


class Manifest(Value):
    """Exactly what was taken from the source: the version of the model."""

    source_uri: str
    source: SourceOptions = SourceOptions()
    format: ModelFormat
    objects: tuple[ObjectRef, ...] = Field(min_length=1)
    facts: ModelFacts = ModelFacts()
    archive: Archive | None = None
    refusals: Mapping[EngineKind, str] = Field(
        default_factory=dict, description="why an engine cannot serve it; engines that can are not in here"
    )
    notes: tuple[str, ...] = Field(default=(), description="what was noticed and left out, in words")
    properties: str = Field(default="", description="text of the serving.properties beside the model; empty: there is none")

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all objects, as they lie in the store."""
        return sum(item.size for item in self.objects)

    @property
    def files(self) -> tuple[Member, ...]:
        """The files of the artifact on a node: the archive's members, else the objects."""
        if self.archive is not None:
            return self.archive.members
        return tuple(Member(path=item.path, size=item.size) for item in self.objects)

    @cached_property
    def unpacked_bytes(self) -> int:
        """Bytes of all files on a node."""
        return sum(item.size for item in self.files)

    @cached_property
    def digest(self) -> str:
        """Name of this version: SHA-256 over every object's path, size, ETag and version id, in hex.

        What is taken out of an archive belongs to it: with other rules the same archive makes another folder.
        """
        lines = sorted(f"{o.path}\0{o.size}\0{o.etag}\0{o.version_id or ''}\0{o.modified_at or ''}" for o in self.objects)
        # Another server may name its objects alike: its bytes must never pass for these.
        if self.source.endpoint_url is not None:
            lines.append(self.source.endpoint_url)
        if self.archive is not None:
            lines += sorted(f"{member.path}\0{member.size}" for member in self.archive.members)
        return hashlib.sha256("\n".join([self.source_uri, *lines]).encode()).hexdigest()

    def __copy__(self) -> Self:
        """Return a copy that works out everything anew: ``model_copy`` changes fields of it afterwards."""
        copied = super().__copy__()
        for name in _DERIVED:
            copied.__dict__.pop(name, None)
        return copied


_MANIFESTS: Final[WeakValueDictionary[str, Manifest]] = WeakValueDictionary()


def _known(manifest: Manifest) -> Manifest:
    """Return the manifest that was the first of its equals."""
    first = _MANIFESTS.setdefault(manifest.digest, manifest)
    return first if first == manifest else manifest


class Model(Record):
    """A tenant's registered model."""

    tenant: str
    name: str
    manifest: Manifest
    engine: EngineKind
    engine_options: Mapping[str, str | int | float | bool] = Field(default_factory=dict)
    weights: Mapping[str, Manifest] = Field(
        default_factory=dict, description="other weights of the same model by name, e.g. q4; an endpoint may choose one"
    )
    created_at: float

    @field_validator("manifest")
    @classmethod
    def _one_of_equals(cls, manifest: Manifest) -> Manifest:
        """Every assignment bears its model: thousands of manifests, few different ones, compared in every plan."""
        return _known(manifest)

    @field_validator("weights")
    @classmethod
    def _each_one_of_equals(cls, weights: Mapping[str, Manifest]) -> Mapping[str, Manifest]:
        return {name: _known(manifest) for name, manifest in weights.items()}
