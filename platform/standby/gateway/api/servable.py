"""Whether a model can be served as an endpoint's variant wants it: by which engine, from which weights. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from standby.domain.endpoint import Backend, Variant
from standby.domain.engine_choice import check_options
from standby.domain.errors import InvalidInput, UnsupportedArtifact
from standby.domain.model import Manifest, Model
from standby.domain.node import Node
from standby.domain.serving import engine_for
from standby.gateway.api.usage import require_weights


def check_servable(model: Model, variant: Variant, nodes: Iterable[Node]) -> None:
    """Raise UnsupportedArtifact where no engine can serve what is asked for, InvalidInput for what does not exist.

    ``nodes`` tell which options their engines know.
    """
    if not variant.backends:
        _check_plain(model, variant.weights)
        return
    known = tuple(nodes)
    for backend in variant.backends:
        _check_backend(model, backend)
        check_options(backend.engine, backend.engine_options or {}, known)


def _check_plain(model: Model, weights: str | None) -> None:
    manifest = _manifest(model, weights)
    if engine_for(model, manifest) not in manifest.refusals:
        return
    reasons = "; ".join(f"{kind.value}: {reason}" for kind, reason in manifest.refusals.items())
    able = [name for name, other in sorted(model.weights.items()) if engine_for(model, other) not in other.refusals]
    raise UnsupportedArtifact(
        f"no engine can serve {_words(model, weights)}: {reasons}",
        remedy=f"choose other weights: {', '.join(able)}" if able else "register the model in a form that an engine can serve",
    )


def _check_backend(model: Model, backend: Backend) -> None:
    try:
        manifest = _manifest(model, backend.weights)
    except InvalidInput as error:
        raise InvalidInput(f"backend {backend.label!r}: {error.message}", remedy=error.remedy) from None
    reason = manifest.refusals.get(backend.engine)
    if reason is None:
        return
    able = [name for name, other in sorted(model.weights.items()) if backend.engine not in other.refusals]
    if backend.engine not in model.manifest.refusals:
        able.insert(0, "the registered ones (leave 'weights' out)")
    raise UnsupportedArtifact(
        f"backend {backend.label!r}: {backend.engine.value} cannot serve {_words(model, backend.weights)}: {reason}",
        remedy=f"choose other weights for it: {', '.join(able)}"
        if able
        else f"register weights that {backend.engine.value} can serve: `standby models register --variant NAME=URI`",
    )


def _manifest(model: Model, weights: str | None) -> Manifest:
    return model.manifest if weights is None else require_weights(model, weights)


def _words(model: Model, weights: str | None) -> str:
    return f"model {model.name!r}" if weights is None else f"weights {weights!r} of model {model.name!r}"
