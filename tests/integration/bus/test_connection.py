"""The connection: refused, lost, back, and never deaf."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest
from pydantic import SecretStr

from standby.bus.connection import Bus
from standby.bus.settings import BusSettings
from standby.domain.errors import BusUnavailable, PayloadTooLarge
from support.nats_server import NatsServer
from support.waiting import until


async def test_no_server_is_said_with_url_and_remedy_and_without_password() -> None:
    with socket.socket() as mute:  # bound and not listening: nobody else can get the port meanwhile
        mute.bind(("127.0.0.1", 0))
        url = f"nats://someone:hunter2@127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(BusUnavailable) as caught:
            await Bus.connect(BusSettings(nats_url=url, nats_connect_timeout=2.0), name="test")
    assert f"127.0.0.1:{url.rpartition(':')[2]}" in str(caught.value)
    assert "STANDBY_NATS_URL" in caught.value.remedy
    assert "hunter2" not in str(caught.value)
    assert "Connect call failed" in caught.value.message


async def test_wrong_password_is_refused_at_once_and_named(server: NatsServer) -> None:
    """The connect timeout of minutes is not waited for: a wrong password does not become right."""
    settings = server.settings(nats_password=SecretStr("wrong"), nats_connect_timeout=600.0)
    async with asyncio.timeout(60):
        with pytest.raises(BusUnavailable, match="Authorization Violation"):
            await Bus.connect(settings, name="test")


async def test_a_failing_handler_is_counted_and_hears_the_next_message(bus: Bus) -> None:
    heard: list[bytes] = []

    def handler(subject: str, payload: bytes) -> None:
        heard.append(payload)
        if payload == b"bad":
            raise ValueError(subject)

    subscription = await bus.subscribe("demand.>", handler)
    await bus.publish("demand.a.b", b"bad")
    await bus.publish("demand.a.b", b"good")
    await until(lambda: heard == [b"bad", b"good"], "both messages heard")
    assert bus.statistics().callback_failures == 1
    await subscription.unsubscribe()
    await bus.publish("demand.a.b", b"late")
    await bus.flush()
    assert heard == [b"bad", b"good"]


async def test_oversized_message_is_refused_and_the_connection_lives(bus: Bus) -> None:
    with pytest.raises(PayloadTooLarge):
        await bus.publish("demand.a.b", bytes(2 * 1024 * 1024))
    await bus.flush()
    assert bus.statistics().disconnects == 0


@pytest.mark.parametrize("kill", [False, True], ids=["TERM", "KILL"])
async def test_comes_back_after_a_restart_with_every_subscription_and_callback(server: NatsServer, kill: bool) -> None:
    """Field case B38: reconnected and subscribed must mean hearing; one failing callback must not starve the others."""
    async with server.bus() as bus, server.bus() as other:
        heard: list[bytes] = []
        calls: list[str] = []

        async def failing() -> None:
            calls.append("failing")
            raise RuntimeError("deliberate")

        async def early() -> None:
            """Finds no streams at first, as just after a start."""
            calls.append("early")
            if calls.count("early") == 1:
                raise BusUnavailable("deliberate")

        async def following() -> None:
            calls.append("following")

        await bus.subscribe("demand.>", lambda _, payload: heard.append(payload))
        for callback in (failing, early, following):
            bus.on_reconnect(callback)
        await server.stop(kill=kill)
        await until(lambda: not bus.connected, "loss noticed")
        with pytest.raises(BusUnavailable, match="not connected"):
            await bus.publish("demand.a.b", b"x")
        await asyncio.sleep(0.5)
        assert bus.disconnected_for() >= 0.4
        await server.start()
        await until(lambda: calls == ["failing", "early", "early", "following"], "callbacks ran in order")
        await until(lambda: other.connected, "other connection back")
        assert bus.disconnected_for() == 0
        await other.publish("demand.a.b", b"again")
        await until(lambda: heard == [b"again"], "message heard after the restart")
        counts = bus.statistics()
        assert (counts.reconnects, counts.disconnects, counts.callback_failures) == (1, 1, 1)


async def test_a_request_under_way_ends_with_the_connection_and_not_at_its_time_limit(server: NatsServer) -> None:
    async with server.bus(nats_request_timeout=120.0) as bus:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)

        async def ask() -> None:
            async with bus.asking("look at the account"):
                await bus.jetstream.account_info()

        asking = asyncio.create_task(ask())
        await asyncio.sleep(0.1)
        assert not asking.done()
        await server.stop(kill=True)
        async with asyncio.timeout(30):
            with pytest.raises(BusUnavailable, match="outcome unknown"):
                await asking


async def test_a_silent_partition_is_noticed_by_pings(server: NatsServer) -> None:
    """The socket stays open and nothing answers: only pings tell."""
    async with server.bus(nats_ping_interval=0.1, nats_connect_timeout=5.0) as bus:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            await until(lambda: not bus.connected, "partition noticed")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await until(lambda: bus.connected, "connection back")


async def test_dropped_messages_are_counted_and_told(bus: Bus, server: NatsServer) -> None:
    drops: list[int] = []
    subscription = await bus.subscribe_messages("demand.>", lambda _: None, on_drop=lambda: drops.append(1), pending_limit=4)
    async with server.bus() as sender:
        for _ in range(2_000):
            await sender.publish("demand.a.b", b"x")
        await sender.flush()
    await bus.flush()
    await until(lambda: bool(drops), "drops told")
    assert bus.statistics().slow_consumer_drops == subscription.drops == len(drops)


async def test_a_connection_that_the_library_gave_up_is_made_anew(bus: Bus, server: NatsServer) -> None:
    """After some server errors nats-py closes for good, unlimited reconnects or not; subscriptions must survive that too."""
    heard: list[bytes] = []
    back = asyncio.Event()

    async def came_back() -> None:
        back.set()

    bus.on_reconnect(came_back)
    await bus.subscribe("demand.>", lambda _, payload: heard.append(payload))
    await bus._client._process_err("'Authorization Violation'")
    async with asyncio.timeout(30):
        await back.wait()
    async with server.bus() as other:
        await other.publish("demand.a.b", b"again")
        await until(lambda: heard == [b"again"], "message heard on the new connection")
    assert bus.statistics().revivals == 1
