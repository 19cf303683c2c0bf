"""What instances are kept for: each variant of the endpoint's config, and of the one that an update brings. Pure.

A variant with several backends is several of these, one for each: each has its own demand, bounds and instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from standby.controller.asked import EndpointDemand, together
from standby.controller.view import EndpointView, Placed
from standby.domain.endpoint import Backend, EndpointConfig, ScalePolicy, Variant
from standby.domain.model import Model
from standby.domain.serving import part_label, parts_of, variants_now, version_of


@dataclass(frozen=True, slots=True)
class Served:
    """One variant, or one backend of it, as it is now, with what it serves and what is asked of it.

    ``variant`` has the backend's weights, slots and bounds. ``share`` is its part of ``demand``, 0 to 1. ``coming``: only the
    config of an update has it, so that nothing is asked of it yet; ``follows`` is then the demand that it will take over,
    None: its share of the endpoint's.
    """

    variant: Variant
    model: Model
    version: str
    demand: EndpointDemand
    share: float
    coming: bool = False
    backend: str = ""
    follows: EndpointDemand | None = None

    @property
    def part(self) -> tuple[str, str]:
        """The variant's name and the backend's label, empty where the variant has none."""
        return self.variant.name, self.backend

    @property
    def label(self) -> str:
        """How people are told which one."""
        return part_label(self.variant.name, self.backend)

    def with_policy(self, policy: ScalePolicy) -> Served:
        """Return the same under ``policy``: what serves does not change by it."""
        if policy is self.variant.policy:
            return self
        return replace(self, variant=self.variant.model_copy(update={"policy": policy}))

    def has(self, placed: Placed, generation: int) -> bool:
        """Whether the instance serves just this; one that failed before the endpoint's last retry does not."""
        have = placed.assignment
        if placed.part != self.part or (placed.failed and have.endpoint_generation < generation):
            return False
        if have.version not in ("", self.version):
            return False
        mine, its = self.model, have.model
        return (mine.engine, mine.engine_options, mine.manifest) == (its.engine, its.engine_options, its.manifest)


def served(endpoint: EndpointView) -> tuple[Served, ...]:
    """Return what instances are kept for; the endpoint's config is at hand. Backends of one variant stand together.

    A variant that an update leaves as it is, but for its policy, has the policy of the update at once: the same instances
    serve before and after.
    """
    assert endpoint.config is not None
    present = _of(endpoint, endpoint.config, coming=False)
    if endpoint.pending is None or not endpoint.pending_resolved:
        return present
    after = _of(endpoint, endpoint.pending, coming=True)
    stays = {(one.part, one.version): one for one in after}
    kept = tuple(_with_policy_of(one, stays.get((one.part, one.version))) for one in present)
    here = {(one.part, one.version) for one in present}
    return (*kept, *(one for one in after if (one.part, one.version) not in here))


def _with_policy_of(present: Served, after: Served | None) -> Served:
    return present if after is None else replace(present, variant=after.variant, model=after.model)


def _of(endpoint: EndpointView, config: EndpointConfig, *, coming: bool) -> tuple[Served, ...]:
    record = endpoint.record
    variants = variants_now(config, record.pending_capacities if coming else record.capacities)
    return tuple(
        _one(endpoint, backend, written_part, part, variants, coming=coming)
        for written, now in zip(config.variants, variants, strict=True)
        for (backend, written_part), (_, part) in zip(parts_of(written), parts_of(now), strict=True)
    )


def _one(
    endpoint: EndpointView,
    backend: Backend | None,
    written: Variant,
    now: Variant,
    variants: Sequence[Variant],
    *,
    coming: bool,
) -> Served:
    model = endpoint.model_of(written, backend)
    assert model is not None, "only resolved configs are served"
    version = version_of(model, written)
    label = "" if backend is None else backend.label
    if coming:
        follows, share = _follows(endpoint, now, label), _share(now, variants)
        return Served(now, model, version, EndpointDemand(), share, coming=True, backend=label, follows=follows)
    demand, share = _asked(endpoint, now, variants) if backend is None else _asked_of_backend(endpoint, now, label, variants)
    return Served(now, model, version, demand, share, backend=label)


def _asked(endpoint: EndpointView, now: Variant, variants: Sequence[Variant]) -> tuple[EndpointDemand, float]:
    """Return the demand for a variant without backends, and its part of that."""
    if len(variants) == 1:
        return endpoint.demand, 1.0
    if "" in endpoint.demands:
        return endpoint.demand, _share(now, variants)
    return _told(endpoint, now.name), 1.0


def _asked_of_backend(
    endpoint: EndpointView, now: Variant, backend: str, variants: Sequence[Variant]
) -> tuple[EndpointDemand, float]:
    """Return the demand for one backend; what is not told of a backend is the preferred one's."""
    own = _told(endpoint, part_label(now.name, backend))
    if backend != _preferred(now.name, variants):
        return own, 1.0
    own = together(own, _told(endpoint, now.name))
    if "" not in endpoint.demands:
        return own, 1.0
    if len(variants) == 1:
        return together(own, _told(endpoint, "")), 1.0
    return endpoint.demand, _share(now, variants)


def _follows(endpoint: EndpointView, now: Variant, backend: str) -> EndpointDemand | None:
    """Return the demand for the same backend of the present config; what it does not have follows nobody's.

    None: a share of the endpoint's, as for what has no backends, or is the preferred one where there were none.
    """
    assert endpoint.config is not None
    assert endpoint.pending is not None
    before = {one.label for variant in endpoint.config.variants if variant.name == now.name for one in variant.backends}
    if not backend:
        return None
    if backend in before:
        return _told(endpoint, part_label(now.name, backend))
    if not before and backend == _preferred(now.name, endpoint.pending.variants):
        return None
    return EndpointDemand(valid=endpoint.demand.valid)


def _told(endpoint: EndpointView, label: str) -> EndpointDemand:
    return endpoint.demands.get(label, EndpointDemand(valid=endpoint.demand.valid))


def _preferred(name: str, variants: Sequence[Variant]) -> str:
    return next(variant.backends[0].label for variant in variants if variant.name == name)


def _share(variant: Variant, variants: Sequence[Variant]) -> float:
    """Return the part of the traffic that goes to ``variant``, 0 to 1."""
    total = sum(one.weight for one in variants)
    return variant.weight / total if total > 0 else 1.0 / len(variants)
