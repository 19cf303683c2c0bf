"""Builders of valid records, so that a test names only what it is about."""

from __future__ import annotations

from typing import Any

from standby.domain.assignment import Assignment
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus, ScalePolicy, Variant
from standby.domain.instance import Activation, Instance, InstanceState, Rung
from standby.domain.model import EngineKind, Manifest, Model, ModelFormat, ObjectRef

TENANT = "000000000000"


def a_manifest(**changes: Any) -> Manifest:
    """A one-object GGUF manifest of 1000 bytes."""
    values: dict[str, Any] = {
        "source_uri": "s3://models/m/",
        "format": ModelFormat.GGUF,
        "objects": (ObjectRef(key="m/model.gguf", path="model.gguf", size=1000, etag="e1"),),
    }
    return Manifest(**{**values, **changes})


def a_model(**changes: Any) -> Model:
    """A registered model served by the fake engine."""
    values: dict[str, Any] = {
        "tenant": TENANT,
        "name": "m",
        "manifest": a_manifest(),
        "engine": EngineKind.FAKE,
        "created_at": 1.0,
    }
    return Model(**{**values, **changes})


def an_endpoint(**changes: Any) -> Endpoint:
    """An endpoint in service, at zero."""
    values: dict[str, Any] = {
        "tenant": TENANT,
        "name": "e",
        "config": "e-1",
        "served_name": "e",
        "status": EndpointStatus.IN_SERVICE,
        "created_at": 1.0,
        "updated_at": 1.0,
    }
    return Endpoint(**{**values, **changes})


def a_config(policy: ScalePolicy | None = None, **changes: Any) -> EndpointConfig:
    """A config with one variant."""
    values: dict[str, Any] = {
        "tenant": TENANT,
        "name": "e-1",
        "variants": (Variant(model="m", policy=policy or ScalePolicy()),),
        "created_at": 1.0,
    }
    return EndpointConfig(**{**values, **changes})


def an_instance(**changes: Any) -> Instance:
    """A ready instance with four slots."""
    values: dict[str, Any] = {
        "node": "n1",
        "id": "i1",
        "tenant": TENANT,
        "endpoint": "e",
        "variant": "AllTraffic",
        "served_name": "e",
        "model_digest": a_manifest().digest,
        "state": InstanceState.READY,
        "epoch": 1,
        "door": "127.0.0.1:9000",
        "slots": 4,
        "rung_since": 1.0,
        "updated_at": 1.0,
        "activation": Activation(id="a1", from_rung=Rung.COLD),
    }
    return Instance(**{**values, **changes})


def an_assignment(**changes: Any) -> Assignment:
    """An assignment that wants the instance ready."""
    values: dict[str, Any] = {
        "node": "n1",
        "instance": "i1",
        "tenant": TENANT,
        "endpoint": "e",
        "variant": "AllTraffic",
        "served_name": "e",
        "model": a_model(),
        "rung": Rung.READY,
        "slots": 4,
        "intent": "intent-1",
        "leader_epoch": 1,
    }
    return Assignment(**{**values, **changes})
