"""What instances are kept for: each variant of the endpoint's config, and of the one that an update brings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from standby.controller.view import EndpointDemand, EndpointView, Placed
from standby.domain.endpoint import EndpointConfig, Variant
from standby.domain.model import Model
from standby.domain.serving import variants_now, version_of


@dataclass(frozen=True, slots=True)
class Served:
    """One variant as it is now, with what it serves and what is asked of it.

    ``share`` is its part of ``demand``, 0 to 1. ``coming``: only the config of an update has it, so that nothing is asked
    of it yet.
    """

    variant: Variant
    model: Model
    version: str
    demand: EndpointDemand
    share: float
    coming: bool = False

    def has(self, placed: Placed, generation: int) -> bool:
        """Whether the instance serves just this; one that failed before the endpoint's last retry does not."""
        have = placed.assignment
        if have.variant != self.variant.name or (placed.failed and have.endpoint_generation < generation):
            return False
        if have.version not in ("", self.version):
            return False
        mine, its = self.model, have.model
        return (mine.engine, mine.engine_options, mine.manifest) == (its.engine, its.engine_options, its.manifest)


def served(endpoint: EndpointView) -> tuple[Served, ...]:
    """Return what instances are kept for; the endpoint's config is at hand.

    A variant that an update leaves as it is, but for its policy, has the policy of the update at once: the same instances
    serve before and after.
    """
    assert endpoint.config is not None
    present = _of(endpoint, endpoint.config, coming=False)
    if endpoint.pending is None or not endpoint.pending_resolved:
        return present
    after = _of(endpoint, endpoint.pending, coming=True)
    stays = {(one.variant.name, one.version): one for one in after}
    kept = tuple(_with_policy_of(one, stays.get((one.variant.name, one.version))) for one in present)
    here = {(one.variant.name, one.version) for one in present}
    return (*kept, *(one for one in after if (one.variant.name, one.version) not in here))


def _with_policy_of(present: Served, after: Served | None) -> Served:
    if after is None:
        return present
    return Served(after.variant, after.model, present.version, present.demand, present.share)


def _of(endpoint: EndpointView, config: EndpointConfig, *, coming: bool) -> tuple[Served, ...]:
    record = endpoint.record
    variants = variants_now(config, record.pending_capacities if coming else record.capacities)
    return tuple(
        _one(endpoint, written, now, variants, coming=coming) for written, now in zip(config.variants, variants, strict=True)
    )


def _one(endpoint: EndpointView, written: Variant, now: Variant, variants: Sequence[Variant], *, coming: bool) -> Served:
    model = endpoint.model_of(written)
    assert model is not None, "only resolved configs are served"
    version = version_of(model, written)
    if coming:
        return Served(now, model, version, EndpointDemand(), _share(now, variants), coming=True)
    if len(variants) == 1:
        return Served(now, model, version, endpoint.demand, 1.0)
    if "" in endpoint.demands:
        return Served(now, model, version, endpoint.demand, _share(now, variants))
    return Served(now, model, version, endpoint.demands.get(now.name, EndpointDemand(valid=endpoint.demand.valid)), 1.0)


def _share(variant: Variant, variants: Sequence[Variant]) -> float:
    """Return the part of the traffic that goes to ``variant``, 0 to 1."""
    total = sum(one.weight for one in variants)
    return variant.weight / total if total > 0 else 1.0 / len(variants)
