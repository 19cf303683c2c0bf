"""Builders of the records that a cluster in memory is made of."""

from __future__ import annotations

from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus, Variant
from standby.domain.model import EngineKind, Manifest, Model, ModelFormat, ObjectRef
from standby.domain.node import CachedArtifact, MemoryLedger, Node, Zygote

TENANT = "000000000000"
MIB = 1024 * 1024
GIB = 1024 * MIB
# A node that has a zygote for the fake engine.
HATCHED = {EngineKind.FAKE: Zygote(state="ready")}


def make_model(name: str = "smol", size: int = 100 * MIB, engine: EngineKind = EngineKind.FAKE) -> Model:
    """Return a model of one GGUF object."""
    manifest = Manifest(
        source_uri=f"s3://models/{name}/",
        format=ModelFormat.GGUF,
        objects=(ObjectRef(key=f"{name}/m.gguf", path="m.gguf", size=size, etag=name),),
    )
    return Model(tenant=TENANT, name=name, manifest=manifest, engine=engine, created_at=0.0)


def make_endpoint(name: str, status: EndpointStatus = EndpointStatus.IN_SERVICE, generation: int = 1) -> Endpoint:
    """Return an endpoint whose config bears its own name."""
    return Endpoint(
        tenant=TENANT,
        name=name,
        config=name,
        served_name=name,
        status=status,
        created_at=0.0,
        updated_at=0.0,
        generation=generation,
    )


def make_config(name: str, *variants: Variant) -> EndpointConfig:
    """Return a config with the given variants."""
    return EndpointConfig(tenant=TENANT, name=name, variants=variants, created_at=0.0)


def make_node(name: str = "n1", capacity: int = 8 * GIB, **fields: object) -> Node:
    """Return a node that runs the fake engine."""
    values: dict[str, object] = {
        "name": name,
        "boot_id": "b1",
        "door": "127.0.0.1:7000",
        "engines": (EngineKind.FAKE,),
        "memory": MemoryLedger(capacity=capacity),
        "started_at": 0.0,
    }
    return Node.model_validate({**values, **fields})


def cached(model: Model) -> CachedArtifact:
    """Return the cache entry of a model."""
    return CachedArtifact(digest=model.manifest.digest, bytes=model.manifest.total_bytes, pinned=False)
