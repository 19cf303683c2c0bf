"""One name for everything that greedy tokens and compiled kernels depend on. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

from standby.domain.model import EngineKind
from standby.domain.values import Value
from standby.runtime.engines import resolved_options

_FORMAT: Final = 2
"""Raised when what goes into a fingerprint changes its meaning, so that no old one passes for a new one."""


class DeviceFacts(Value):
    """What computes. ``driver`` of processors is the kernel's architecture, ``compute_capability`` their instruction sets."""

    name: str
    compute_capability: str
    driver: str
    processors: int = 0
    """How many an engine may use: their number is compiled into loops, and splits sums. 0: a GPU."""


def fingerprint(
    *,
    engine: EngineKind,
    version: str,
    digest: str,
    options: Mapping[str, str | int | float | bool],
    device: DeviceFacts,
    slots: int,
) -> str:
    """Return the SHA-256, in hex, of all that is given; the order of ``options`` does not count, the type of a value does.

    ``version`` is the adapter's, ``digest`` the manifest's. Options that are left out count with their defaults.
    """
    return _hashed(
        {
            "format": _FORMAT,
            "engine": engine.value,
            "version": version,
            "digest": digest,
            "options": dict(options),
            "resolved": dict(resolved_options.resolved(engine, options)),
            "device": device.model_dump(),
            "slots": slots,
        }
    )


def of_tenant(name: str, tenant: str) -> str:
    """Return the fingerprint ``name`` as far as it is ``tenant``'s alone.

    For what an engine writes and another one executes: one tenant's engine must not prepare code for another's.
    """
    return _hashed({"fingerprint": name, "tenant": tenant})


def _hashed(content: Mapping[str, object]) -> str:
    # Python writes 1, 1.0 and true differently, which is right: engines tell them apart, too.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()
