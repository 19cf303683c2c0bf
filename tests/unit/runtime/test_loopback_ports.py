"""Ports of engines that know no unix sockets."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from standby.domain.errors import EngineStartFailed
from standby.runtime.engines.loopback_ports import LOOPBACK, LoopbackPorts, names_taken_port


def test_no_two_engines_get_the_same_port_until_it_is_given_back() -> None:
    ports = LoopbackPorts()
    taken = [ports.take() for _ in range(50)]
    assert len(set(taken)) == 50
    assert taken[0] in ports._taken
    ports.give_back(taken[0])
    assert taken[0] not in ports._taken


def test_a_port_can_be_bound_by_a_program_that_reuses_no_addresses() -> None:
    ports = LoopbackPorts()

    def can_be_bound() -> bool:
        with closing(socket.socket()) as engine:
            try:
                engine.bind((LOOPBACK, ports.take()))
            except OSError:
                return False
            return True

    # Anybody on this machine may take a port between our look and the bind.
    assert any(can_be_bound() for _ in range(10))


def test_where_only_ports_in_use_are_offered_it_gives_up_and_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel forgets a port at once and may offer it again to the next engine."""

    class Fixed(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            return LOOPBACK, 4711

    ports = LoopbackPorts()
    monkeypatch.setattr("standby.runtime.engines.loopback_ports.socket.socket", Fixed)
    assert ports.take() == 4711
    with pytest.raises(EngineStartFailed, match="1 are in use by engines"):
        ports.take()


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("RuntimeError: Failed to bind socket to 127.0.0.1:81: [Errno 98] Address already in use", True),
        ("[Errno 98] error while attempting to bind on address ('127.0.0.1', 81): address already in use", True),
        ("RuntimeError: CUDA out of memory", False),
    ],
)
def test_the_words_of_a_taken_port_are_known(line: str, taken: bool) -> None:
    assert names_taken_port(line) is taken
