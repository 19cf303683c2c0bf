"""Whether a unix socket accepts anybody, asked without waiting."""

from __future__ import annotations

import socket
from pathlib import Path

from standby.wire.sockets import nobody_listens


def test_a_socket_that_is_listened_at_one_that_was_left_and_one_that_never_was(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert nobody_listens(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert nobody_listens(path)
        listener.listen(1)
        assert not nobody_listens(path)
        # A full queue means that somebody is there.
        assert not any(nobody_listens(path) for _ in range(5))
    assert nobody_listens(path)
    assert not nobody_listens(("127.0.0.1", 1))
