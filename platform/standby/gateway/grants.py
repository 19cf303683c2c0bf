"""What a desk gives: leave to send one request to one instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from standby.domain.instance import Activation, Instance, Rung
from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.gateway import sessions
from standby.gateway.unread import Unread

if TYPE_CHECKING:
    from standby.gateway.desk import Desk
    from standby.gateway.router import Choice
    from standby.gateway.waiting_room import Wish

# Each request asks for it: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_READY: Final = Rung.READY


class Grant(NamedTuple):
    """Leave to send one request to one instance; must be released.

    ``new_session`` is ``id; Expires=…`` of a session that begins with this request, ``closed_session`` the id of one that
    has ended. ``spillover``: more requests are under way here than the provisioned capacity is meant for. ``reason`` says
    why this instance, ``queue_reason`` why the request was the next one (empty: it has not waited). ``probe``: the answer
    decides whether the instance gets requests again. ``prioritised``: the engine works by the priority in the request.
    ``prompt_bytes`` are those of the prompt's text, 0 where there is none.
    ``node`` is the instance's. ``arrived`` is by the desk's monotonic clock, ``waited_s`` from then to the grant.
    ``unread``: the prompt of a stream, to be told when its answer begins.
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
    reason: str = ""
    backend: str = ""
    engine: EngineKind | None = None
    prioritised: bool = False
    probe: bool = False
    queue_reason: str = ""
    priority: Priority = Priority.NORMAL
    arrived: float = 0.0
    waited_s: float = 0.0
    prompt_bytes: int = 0
    node: str = ""
    unread: Unread | None = None

    @property
    def alone(self) -> bool:
        """Whether no other request of this gateway is in flight at its instance."""
        return self.desk.outstanding.get(self.instance) == 1


def grant_of(
    record: Instance,
    climbed: Activation | None,
    desk: Desk,
    choice: Choice,
    wish: Wish,
    now: float,
    board: dict[str, int],
    *,
    spillover: bool,
    queue_reason: str,
) -> Grant:
    """Return the grant for a chosen instance; ``climbed``: what has brought it up since the request arrived.

    On ``board`` are the bytes of unread prompts by instance.
    """
    ask = wish.ask
    return Grant(
        record.id,
        record.address,
        record.epoch,
        _READY if climbed is None else climbed.from_rung,
        climbed,
        desk,
        desk.route.variant.name,
        spillover,
        None,
        None,
        choice.reason,
        record.backend,
        record.engine,
        record.prioritised,
        choice.probe,
        queue_reason,
        wish.priority,
        wish.arrived,
        max(0.0, now - wish.arrived),
        ask.prompt_bytes,
        record.node,
        Unread(board, record.id, ask.prompt_bytes) if ask.stream and ask.prompt_bytes else None,
    )


def in_session(grant: Grant, session: str, token: str, now: float) -> Grant:
    """Return the grant with the session that it belongs to: the caller's, or a new one of ``token`` where that has ended."""
    if grant.instance == sessions.instance_of(session, now):
        return grant
    begun = sessions.new_id(token, grant.instance, now + sessions.LIFETIME_S)
    closed = None if session == sessions.NEW_SESSION else session
    return grant._replace(new_session=sessions.told(begun), closed_session=closed)
