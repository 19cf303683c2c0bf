"""What a desk is for, and what it gives: leave to send one request to one instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from standby.domain.endpoint import Endpoint, ScalePolicy, Variant
from standby.domain.instance import Activation, Rung

if TYPE_CHECKING:
    from standby.gateway.desk import Desk


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint's variant as the directory resolves it.

    ``version`` is what its instances should serve (``standby.domain.serving.version_of``); empty: not known here.
    """

    endpoint: Endpoint
    variant: Variant
    version: str = ""

    @property
    def policy(self) -> ScalePolicy:
        """The variant's scale policy."""
        return self.variant.policy


class Grant(NamedTuple):
    """Leave to send one request to one instance; must be released.

    ``new_session`` is ``id; Expires=…`` of a session that begins with this request, ``closed_session`` the id of one that
    has ended. ``spillover``: more requests are under way here than the provisioned capacity is meant for.
    """

    instance: str
    address: tuple[str, int]
    epoch: int
    rung: Rung
    activation: Activation | None
    desk: Desk
    variant: str
    spillover: bool = False
    new_session: str | None = None
    closed_session: str | None = None
