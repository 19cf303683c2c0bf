"""An endpoint's variant as the directory resolves it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standby.domain.ask import Ask
from standby.domain.endpoint import Endpoint, ScalePolicy, Variant
from standby.domain.model import EngineKind
from standby.domain.traffic import TrafficPolicy
from standby.gateway.hybrid import TokenCount

_USUAL_TRAFFIC: Final = TrafficPolicy()

TokenCounter = Callable[[Ask], TokenCount | None]


class RoutePart(NamedTuple):
    """One engine of a variant: of a variant without backends the only one, whose ``backend`` is empty.

    ``version`` is what its instances should serve (``standby.domain.serving.version_of``); empty: not known here.
    ``digest`` is of the manifest that they serve. ``engine`` and ``digest`` are None where the model is not known here.
    """

    backend: str
    engine: EngineKind | None
    version: str
    slots: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint's variant as the directory resolves it.

    ``version`` is that of a variant without backends; ``parts`` are its engines, the preferred one first. A route that is
    made without parts has the one that the variant and the version say. ``count_tokens`` counts a prompt's tokens; it returns
    None while no tokenizer is there.
    """

    endpoint: Endpoint
    variant: Variant
    version: str = ""
    traffic: TrafficPolicy = _USUAL_TRAFFIC
    parts: tuple[RoutePart, ...] = ()
    count_tokens: TokenCounter | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.parts:
            object.__setattr__(self, "parts", (RoutePart("", None, self.version, self.variant.policy.slots),))

    @property
    def policy(self) -> ScalePolicy:
        """The variant's scale policy."""
        return self.variant.policy

    @property
    def hybrid(self) -> bool:
        """Whether the variant has several engines to choose from."""
        return len(self.parts) > 1
