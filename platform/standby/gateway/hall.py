"""The desks of one endpoint, one for each variant, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from standby.domain.errors import VariantNotFound
from standby.gateway.desk import Desk, Route
from standby.gateway.spread import take_turn


@dataclass(slots=True)
class Hall:
    """``open_desk`` makes the desk of a variant that had none, with every instance of it that is known."""

    open_desk: Callable[[Route], Desk]
    desks: dict[str, Desk] = field(default_factory=dict)
    _weights: tuple[float, ...] = ()
    _credit: tuple[float, ...] = ()
    _in_turn: tuple[Desk, ...] = ()

    def desk(self, variant: str | None) -> Desk:
        """Return the desk of the named variant, or of the one whose turn it is. Raises VariantNotFound."""
        if variant is not None:
            return self._named(variant)
        if len(self._in_turn) == 1:
            return self._in_turn[0]
        turn, self._credit = take_turn(self._weights, self._credit)
        return self._in_turn[turn]

    def routes_changed(self, routes: Sequence[Route]) -> None:
        """Take up the variants as they are now; who waits for one that is gone goes on waiting at another one's desk."""
        before = self.desks
        self.desks = {}
        for route in routes:
            desk = before.pop(route.variant.name, None)
            if desk is None:
                desk = self.open_desk(route)
            self.desks[route.variant.name] = desk
        weights = tuple(route.variant.weight for route in routes)
        if weights != self._weights or before or len(self.desks) != len(self._in_turn):
            self._weights, self._credit = weights, (0.0,) * len(weights)
        self._in_turn = tuple(self.desks.values())
        for route in routes:
            self.desks[route.variant.name].route_changed(route)
        for gone in before.values():
            gone.moved_to(self.desk(None))

    def removed(self) -> None:
        """The endpoint is no more."""
        for desk in self.desks.values():
            desk.endpoint_removed()

    @property
    def first(self) -> Desk:
        """Any of its desks: they are of one endpoint."""
        return self._in_turn[0]

    def _named(self, variant: str) -> Desk:
        desk = self.desks.get(variant)
        if desk is None:
            known = ", ".join(self.desks)
            raise VariantNotFound(
                f"endpoint {self.first.route.endpoint.name!r} has no variant {variant[:80]!r}", remedy=f"it has {known}"
            )
        return desk
