"""A subscription that survives reconnects and tells when messages were lost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import nats.errors

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as RawSubscription

    from standby.bus.connection import Bus

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Message:
    """One received message; ``reply`` is where an answer is awaited, if one is."""

    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    reply: str = ""


Handler: TypeAlias = Callable[[str, bytes], None]
MessageHandler: TypeAlias = Callable[[Message], None]


class Subscription:
    """Made by ``Bus.subscribe``; lives until ``unsubscribe``."""

    def __init__(
        self,
        bus: Bus,
        subject: str,
        handler: MessageHandler,
        *,
        on_drop: Callable[[], None] | None,
        pending_limit: int,
    ) -> None:
        self.subject = subject
        self.drops = 0
        self._bus = bus
        self._handler = handler
        self._on_drop = on_drop
        self._pending_limit = pending_limit
        self._raw: RawSubscription | None = None

    async def attach(self, client: Client) -> None:
        """Register with ``client``; called by the bus, again when a client had to be replaced."""
        self._raw = await client.subscribe(self.subject, cb=self._receive, pending_msgs_limit=self._pending_limit)

    async def unsubscribe(self) -> None:
        """Receive nothing more; idempotent, never raises."""
        self._bus.forget(self)
        raw, self._raw = self._raw, None
        if raw is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await raw.unsubscribe()

    def is_attached_as(self, raw: RawSubscription) -> bool:
        """Whether ``raw`` is this subscription's registration."""
        return self._raw is raw

    def dropped(self, subject: str) -> None:
        """Note that the client threw a message away because its queue was full."""
        self.drops += 1
        if self.drops == 1:
            log.warning("subscription %s is too slow: messages are dropped, first on %s", self.subject, subject)
        if self._on_drop is not None:
            self._on_drop()

    async def _receive(self, message: Msg) -> None:
        if self._raw is not None:
            received = Message(message.subject, message.data, message.headers or {}, message.reply)
            self._bus.guard(lambda: self._handler(received), f"handler of {self.subject}")
