"""The zygote's parts: fitness, and the packets that it and the agent exchange."""

from __future__ import annotations

import os
import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from standby.runtime.zygote import fitness
from standby.runtime.zygote.mark import rewrite_mark
from standby.runtime.zygote.protocol import (
    MESSAGE_LIMIT,
    Armed,
    Born,
    ForkRequest,
    Message,
    Ready,
    Refused,
    Unfit,
    decode,
    encode,
    pair,
    receive_request,
    say,
)

REQUEST = ForkRequest(["--x", "é"], {"A": "b=c"}, "0" * 32, 7, ["READY"], [0, 1])


def test_a_second_thread_makes_a_process_unfit() -> None:
    end = threading.Event()
    before = fitness.thread_count()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert fitness.thread_count() == before + 1
        assert fitness.unfit() == f"{before + 1} threads run in it, and a fork copies only one"
    finally:
        end.set()
        thread.join()


@pytest.mark.parametrize(("initialised", "unfit"), [(True, True), (False, False)])
def test_cuda_is_asked_for_only_where_torch_was_imported(
    monkeypatch: pytest.MonkeyPatch, initialised: bool, unfit: bool
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert fitness.cuda_words() == ""
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: initialised))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert bool(fitness.cuda_words()) is unfit


def test_an_open_device_makes_a_process_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitness.device_words() == ""
    monkeypatch.setattr(fitness, "open_files", lambda: {0: "/dev/null", 9: "/dev/nvidiactl"})
    assert fitness.device_words() == "it holds /dev/nvidiactl open, which does not survive a fork"


@pytest.mark.parametrize(
    "message", [Ready("v"), Unfit("why"), REQUEST, Refused("why", fit=False), Born(1, 2, 3), Armed()], ids=repr
)
def test_every_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("packet", [b"", b"{}", b"[1]", b'["Nobody", {}]', b'["Born", {"pid": 1}]', b"\xff"])
def test_anything_else_is_no_message(packet: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        decode(packet)


def test_a_message_that_is_too_large_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match=f"the limit is {MESSAGE_LIMIT}"):
        encode(Unfit("x" * MESSAGE_LIMIT))


def test_a_request_comes_with_its_descriptors_and_an_exec_inherits_none() -> None:
    near, far = pair()
    read_end, write_end = os.pipe()
    with near, far:
        socket.send_fds(near, [encode(REQUEST)], [write_end])
        received = receive_request(far)
        assert received is not None
        request, (passed,) = received
        assert request == REQUEST
        assert not os.get_inheritable(passed)
        os.write(passed, b"x")
        assert os.read(read_end, 8) == b"x"
        for descriptor in (passed, read_end, write_end):
            os.close(descriptor)
        near.close()
        assert receive_request(far) is None
        say(far, Armed())  # nobody listens: nothing happens


def test_a_mark_that_is_not_there_cannot_be_changed() -> None:
    """The zygote finds that out before it says that it is ready."""
    with pytest.raises(RuntimeError, match="cannot be changed"):
        rewrite_mark("f" * 32, "0" * 32)
