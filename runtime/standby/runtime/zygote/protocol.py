"""What the agent and a zygote say to each other. Standard library only, Python 3.10: both sides import it.

Two kinds of private socket pairs, inherited or passed, never bound to a path, so that nobody else can connect:

* the *control* socket, one for the zygote's life: the zygote says ``Ready`` or ``Unfit`` once, then takes requests;
* a *leash* for each fork, passed with the request: over it the fork says ``Born``, then ``Armed`` once it is a child of
  the agent and tied to its life, or why it came to nothing (``Refused``), and waits for ``GO``. A leash that is closed
  before that ends the fork: an engine that the agent does not know of cannot live.

Each message is one packet (SOCK_SEQPACKET) of JSON; descriptors travel beside it (SCM_RIGHTS, see unix(7)).
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import Final

MESSAGE_LIMIT: Final = 160 * 1024
"""Bytes of one message; the kernel's buffer holds 208 KiB unless it was made smaller."""

DESCRIPTORS_LIMIT: Final = 16

GO: Final = b"go"
"""The agent knows the fork: it may run."""

CONTROL_VARIABLE: Final = "STANDBY_ZYGOTE_CONTROL"
"""Descriptor of the zygote's end of the control socket."""


@dataclass(frozen=True)
class Ready:
    """The zygote has imported everything and can fork."""

    version: str


@dataclass(frozen=True)
class Unfit:
    """The zygote must not fork, or could not be made."""

    reason: str


@dataclass(frozen=True)
class ForkRequest:
    """One engine to be. The packet carries the leash, the log, and then one descriptor for each name in ``descriptors``.

    ``environment`` is complete. The child finds the number of each descriptor in the variable of that name.
    """

    arguments: list[str]
    environment: dict[str, str]
    mark: str
    agent: int
    descriptors: list[str]
    cores: list[int]


@dataclass(frozen=True)
class Refused:
    """Nothing was born. ``fit`` is False when the zygote itself is of no use any more."""

    reason: str
    fit: bool


@dataclass(frozen=True)
class Born:
    """The engine's process exists. ``midwife`` is the process between it and the zygote, which is about to end."""

    pid: int
    start_ticks: int
    midwife: int


@dataclass(frozen=True)
class Armed:
    """The engine's process is a child of the agent, dies with it, and waits for GO."""


Message = Ready | Unfit | ForkRequest | Refused | Born | Armed
_KINDS: Final = {kind.__name__: kind for kind in (Ready, Unfit, ForkRequest, Refused, Born, Armed)}


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends that keep packets apart; neither is inherited by an exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encode(message: Message) -> bytes:
    """Return the packet for ``message``. Raises ValueError when it is larger than MESSAGE_LIMIT."""
    packet = json.dumps([type(message).__name__, asdict(message)]).encode()
    if len(packet) > MESSAGE_LIMIT:
        raise ValueError(f"message has {len(packet)} bytes, the limit is {MESSAGE_LIMIT}")
    return packet


def decode(packet: bytes) -> Message:
    """Return the message in ``packet``. Raises ValueError when it is none."""
    try:
        kind, content = json.loads(packet)
        return _KINDS[kind](**content)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"not a message of the zygote's protocol: {packet[:80]!r}") from error


def say(to: socket.socket, message: Message) -> None:
    """Send ``message``; a partner that has gone is told nothing."""
    try:
        to.send(encode(message), socket.MSG_NOSIGNAL)
    except OSError:  # the agent has gone or has given up: the closed socket is noticed where it matters
        return


def receive_request(control: socket.socket) -> tuple[ForkRequest, list[int]] | None:
    """Wait for a request and return it with its descriptors, none of which an exec inherits; None when the agent is gone."""
    packet, descriptors, flags, _ = socket.recv_fds(control, MESSAGE_LIMIT + 1, DESCRIPTORS_LIMIT)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # ``recv_fds`` ignores its flags, MSG_CMSG_CLOEXEC among them
    if not packet:
        return None
    message = decode(packet)
    if not isinstance(message, ForkRequest) or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise ValueError(f"not a request: {packet[:80]!r}")
    return message, descriptors
