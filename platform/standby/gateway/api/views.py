"""How records are shown to callers: pure translations of the stored values, with the state in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from standby.domain import words
from standby.domain.access import ApiKey
from standby.domain.durations import format_duration
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus, Failure
from standby.domain.instance import Instance, InstanceState, Rung
from standby.domain.model import EngineKind, Manifest, Model
from standby.domain.node import CachedArtifact, Node, NodeMode
from standby.domain.serving import PREFERENCE, engine_for, variants_now

_NO_NODES: Final[Mapping[str, Node]] = MappingProxyType({})


def model_view(model: Model, *, objects: bool) -> dict[str, Any]:
    """Return a model as callers see it; ``objects`` lists every object of the manifest, else only their number.

    ``engine`` None: no engine can serve it; ``engines`` says why.
    """
    return {
        "name": model.name,
        "tenant": model.tenant,
        "engine": _able(model.engine, model.manifest),
        "engine_options": dict(model.engine_options),
        **manifest_view(model.manifest, objects=objects),
        "weights": {
            name: {
                "engine": _able(engine_for(model, manifest), manifest),
                **manifest_view(manifest, objects=objects),
            }
            for name, manifest in sorted(model.weights.items())
        },
        "created_at": model.created_at,
    }


def manifest_view(manifest: Manifest, *, objects: bool) -> dict[str, Any]:
    """Return what was taken from a source, with each engine's verdict."""
    archive = manifest.archive
    view: dict[str, Any] = {
        "format": manifest.format,
        "source_uri": manifest.source_uri,
        "source": manifest.source,
        "digest": manifest.digest,
        "bytes": manifest.total_bytes,
        "object_count": len(manifest.objects),
        "archive": None
        if archive is None
        else {
            "compression": archive.compression,
            "wrapper": archive.wrapper,
            "member_count": len(archive.members),
            "bytes": archive.total_bytes,
        },
        "facts": manifest.facts,
        "engines": [
            {"engine": kind, "serves": kind not in manifest.refusals, "reason": manifest.refusals.get(kind, "")}
            for kind in PREFERENCE
        ],
        "notes": manifest.notes,
    }
    if objects:
        view["objects"] = manifest.objects
        view["members"] = [] if archive is None else archive.members
    return view


def models_by_digest(models: Iterable[Model]) -> dict[str, list[str]]:
    """Return for each version the models that are it, as administrators see them: ``tenant/name``, ``tenant/name (q4)``."""
    found: dict[str, list[str]] = {}
    for model in models:
        named = [("", model.manifest), *((f" ({name})", manifest) for name, manifest in model.weights.items())]
        for suffix, manifest in named:
            found.setdefault(manifest.digest, []).append(f"{model.tenant}/{model.name}{suffix}")
    return {digest: sorted(names) for digest, names in found.items()}


def artifact_view(artifact: CachedArtifact, models: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return what lies in a node's cache, with the models that are it."""
    return {**artifact.model_dump(), "models": models.get(artifact.digest, [])}


def endpoint_view(
    endpoint: Endpoint,
    config: EndpointConfig | None,
    instances: Iterable[Instance],
    now: float,
    nodes: Mapping[str, Node] = _NO_NODES,
) -> dict[str, Any]:
    """Return an endpoint with its instances, the highest rung among them and its state in words.

    ``config`` None: this gateway's copy does not hold it yet. ``nodes`` by name tell what a climb takes.
    """
    mine = sorted(instances, key=words.warmth, reverse=True)
    return {
        "name": endpoint.name,
        "tenant": endpoint.tenant,
        "served_name": endpoint.served_name,
        "status": endpoint.status,
        "rung": max((item.rung for item in mine), default=Rung.COLD),
        "state": endpoint_in_words(endpoint, mine, now, nodes),
        "failure": None if endpoint.failure is None else failure_view(endpoint.failure),
        "config": endpoint.config,
        "pending_config": endpoint.pending_config,
        "update_failure": None if endpoint.update_failure is None else failure_view(endpoint.update_failure),
        "variants": [] if config is None else variants_now(config, endpoint.capacities),
        "traffic": None if config is None else config.traffic,
        "instances": [instance_view(item, now, nodes) for item in mine],
        "generation": endpoint.generation,
        "created_at": endpoint.created_at,
        "updated_at": endpoint.updated_at,
    }


def endpoint_in_words(endpoint: Endpoint, instances: list[Instance], now: float, nodes: Mapping[str, Node] = _NO_NODES) -> str:
    """Return one line that says what the endpoint does; ``instances`` warmest first."""
    if (said := words.endpoint_without(endpoint, instances)) is not None:
        failure = endpoint.failure if endpoint.status is EndpointStatus.FAILED else None
        return said if failure is None else said + _next_try(failure, now)
    return instance_in_words(instances[0], now, words.climb_seconds(instances[0], nodes)) + words.others(instances)


def instance_in_words(instance: Instance, now: float, climb_s: float | None = None) -> str:
    """Return one line that says what the instance does and for how long; ``climb_s`` as ``climb_seconds`` tells it."""
    doing = words.instance_doing(instance, climb_s)
    lacks = "" if instance.failure is None else _next_try(instance.failure, now)
    if instance.state is InstanceState.FAILED and instance.failure is not None:
        return doing + lacks
    if instance.state in words.CLIMBING:
        return doing
    if instance.state is InstanceState.DRAINING:
        return doing + ("" if instance.drain_until is None else f", {max(0.0, instance.drain_until - now):.0f} s left")
    reason = "" if instance.failure is None else f"; {instance.failure.reason}{lacks}"
    return f"{doing}, for {format_duration(max(0.0, now - instance.rung_since))}{reason}"


def by_name(nodes: Iterable[Node]) -> dict[str, Node]:
    """Return ``nodes`` as the views of instances want them."""
    return {node.name: node for node in nodes}


def instance_view(instance: Instance, now: float, nodes: Mapping[str, Node] = _NO_NODES) -> dict[str, Any]:
    """Return an instance as callers see it; ``climb_s`` is what its node has measured from this rung until ready."""
    climb_s = words.climb_seconds(instance, nodes)
    return {
        "id": instance.id,
        "node": instance.node,
        "endpoint": instance.endpoint,
        "variant": instance.variant,
        "backend": instance.backend,
        "engine": instance.engine,
        "prioritised": instance.prioritised,
        "adapters": instance.adapters,
        "memory_pressure": instance.memory_pressure,
        "state": instance.state,
        "rung": instance.rung,
        "words": instance_in_words(instance, now, climb_s),
        "climb_s": climb_s,
        "progress": instance.progress,
        "epoch": instance.epoch,
        "slots": instance.slots,
        "in_flight": instance.in_flight,
        "drain_until": instance.drain_until,
        "resident_bytes": instance.resident_bytes,
        "model_digest": instance.model_digest,
        "idle_since": instance.idle_since,
        "rung_since": instance.rung_since,
        "activation": instance.activation,
        "failure": None if instance.failure is None else failure_view(instance.failure),
        "updated_at": instance.updated_at,
    }


def failure_view(failure: Failure) -> dict[str, Any]:
    """Return why something failed."""
    return failure.model_dump()


def node_view(node: Node, instances: Sequence[Instance], models: Mapping[str, list[str]], now: float) -> dict[str, Any]:
    """Return a node with the number of its ``instances``, and its artifacts with the ``models`` that they are; for
    administrators.
    """
    return {
        "name": node.name,
        "mode": node.mode,
        "mode_reason": node.mode_reason,
        "words": node_in_words(node, instances, now),
        "door": node.door,
        "engines": node.engines,
        "engine_versions": dict(node.engine_versions),
        "absent_engines": {kind: absence.model_dump() for kind, absence in node.absent_engines.items()},
        "memory": {**node.memory.model_dump(), "free": node.memory.free},
        "cache_bytes": node.cache_bytes,
        "cache_capacity": node.cache_capacity,
        "artifacts": [artifact_view(item, models) for item in node.artifacts],
        "costs": {digest: dict(costs) for digest, costs in node.costs.items()},
        "engine_devices": dict(node.engine_devices),
        "devices": [{**device.model_dump(), "memory_free": device.memory_free} for device in node.devices],
        "zygotes": {engine: zygote.model_dump() for engine, zygote in node.zygotes.items()},
        "isolation": node.isolation,
        "instances": len(instances),
        "in_flight": sum(item.in_flight for item in instances),
        "started_at": node.started_at,
        "boot_id": node.boot_id,
        "version": node.version,
    }


def node_in_words(node: Node, instances: Sequence[Instance], now: float) -> str:
    """Return one line that says what the node takes, and what it still waits for where it is being emptied."""
    doing = words.node_doing(node, instances)
    until = [item.drain_until for item in instances if item.drain_until is not None]
    empties = node.mode in {NodeMode.DRAINING, NodeMode.LEAVING} and bool(until)
    return doing + (f", {max(0.0, max(until) - now):.0f} s left" if empties else "")


def key_view(key: ApiKey) -> dict[str, Any]:
    """Return a key as administrators see it: never its digest."""
    return key.model_dump(exclude={"digest", "schema_version"})


def _able(engine: EngineKind, manifest: Manifest) -> EngineKind | None:
    return None if engine in manifest.refusals else engine


def _next_try(failure: Failure, now: float) -> str:
    if failure.next_retry_at is None:
        return ""
    return f"; next try in {format_duration(max(0.0, failure.next_retry_at - now))}"
