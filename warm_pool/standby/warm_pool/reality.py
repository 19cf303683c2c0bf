"""The ledger against what is: where promises and measured memory differ. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from standby.warm_pool.ledger import NOTHING, Claim, named

# Two looks at one process differ by less; an engine's own buffers come and go within it.
TOLERANCE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Difference:
    """One holder whose claim and memory do not agree; bytes of ``resource``."""

    holder: str
    resource: str
    claimed: int
    measured: int
    reason: str


def reconcile(
    claims: Mapping[str, Claim], measured: Mapping[str, Claim], alive: Collection[str], tolerance: int = TOLERANCE_BYTES
) -> tuple[Difference, ...]:
    """Return where the ledger is wrong: it promises to what has no process, or less than what is really held.

    ``measured`` names whoever was measured; ``alive`` whoever may have processes, measured or not: a claim may be larger
    than what is held, since a climb has still to fill it.
    """
    return tuple(
        difference
        for holder in sorted({*claims, *measured})
        for difference in _of(holder, claims.get(holder, NOTHING), measured.get(holder), holder in alive, tolerance)
    )


def _of(holder: str, claim: Claim, held: Claim | None, alive: bool, tolerance: int) -> Iterator[Difference]:
    now = NOTHING if held is None else held
    for resource in dict.fromkeys((*claim.resources, *now.resources)):
        claimed, there = claim.of(resource), now.of(resource)
        if claimed and not alive and not there:
            yield Difference(holder, resource, claimed, 0, f"{holder} has no process and holds a claim on {named(resource)}")
        elif there > claimed + tolerance:
            reason = f"{holder} holds {there} bytes of {named(resource)}, {claimed} are promised to it"
            yield Difference(holder, resource, claimed, there, reason)
