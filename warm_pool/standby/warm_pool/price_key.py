"""What a price and a size belong to: one version of a model, run by one engine with given options. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from standby.domain.assignment import Assignment
from standby.domain.model import EngineKind

_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class PriceKey:
    """``digest`` is the manifest's; ``options`` names engine options and slots, which decide how much memory is taken."""

    engine: EngineKind
    digest: str
    options: str

    @property
    def text(self) -> str:
        """The key as tables and files hold it."""
        return f"{self.digest}-{self.options}"


def price_key(assignment: Assignment) -> PriceKey:
    """Return what an instance's prices and sizes are kept under; the order of its options does not matter."""
    model = assignment.model
    told = json.dumps([model.engine.value, assignment.slots, dict(model.engine_options)], sort_keys=True)
    return PriceKey(model.engine, model.manifest.digest, hashlib.sha256(told.encode()).hexdigest()[:_DIGITS])


def digest_of(text: str) -> str:
    """Return the manifest's digest of a key as tables and files hold it."""
    return text.rpartition("-")[0]
