"""Which engine a new model gets, and whether its engine takes its options. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from standby.domain.errors import InvalidInput
from standby.domain.model import EngineKind, Manifest
from standby.domain.node import Node
from standby.domain.serving import PREFERENCE, default_engine


def choose_engine(wanted: EngineKind | None, manifest: Manifest) -> EngineKind:
    """Return the engine that will serve the manifest: ``wanted``, else the first that can.

    Where none can, the usual one for the format: the model is registered all the same, and no endpoint will be created for
    it. Raises InvalidInput where ``wanted`` cannot, with the reason.
    """
    if wanted is None:
        return default_engine(manifest)
    reason = manifest.refusals.get(wanted)
    if reason is not None:
        able = ", ".join(kind.value for kind in PREFERENCE if kind not in manifest.refusals)
        raise InvalidInput(
            f"engine {wanted.value!r} cannot serve this model: {reason}",
            remedy=f"choose one of: {able}" if able else "no engine can serve this model as it is",
        )
    return wanted


def check_options(engine: EngineKind, options: Iterable[str], nodes: Iterable[Node]) -> None:
    """Refuse an option that no node's engine knows: it would only be found out at the first start. Raises InvalidInput.

    While no node says what the engine takes, nothing can be checked.
    """
    known = {name for node in nodes for name in node.engine_options.get(engine, ())}
    unknown = sorted(set(options) - known) if known else []
    if unknown:
        raise InvalidInput(
            f"{engine.value} has no engine option {', '.join(repr(name[:60]) for name in unknown)}",
            remedy=f"known are: {', '.join(sorted(known))}",
        )
