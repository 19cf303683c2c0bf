"""A tenant's own store: the deployment's environment has no keys for it, and the model serves with the stored ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.warm_pool.run_dir import run_dir
from support.real_model import real_model_path
from support.s3_server import S3Server
from support.user import DEADLINE_S, PARIS, QUESTION, up
from support.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]


async def test_a_model_in_a_tenants_own_store_serves(s3: S3Server, folder: Path) -> None:
    """Keys stored, model registered with another form of it beside, woken from cold; nowhere is a key to be seen."""
    place = ("s3://models/smollm2/", "--endpoint-url", s3.url, "--region", s3.region)
    async with up(folder / "state") as running:
        shell = running.shell
        without = await shell.standby("models", "register", "smol", *place, code=8)
        secret = s3.secret_key.encode()
        await shell.standby(
            "credentials", "create", "own", "--access-key", s3.access_key, "--secret-key-file", "-", stdin=secret
        )
        words = (*place, "--credentials", "own", "--variant", "same=s3://models/smollm2/model.gguf")
        registered = await shell.standby("models", "register", "smol", *words)
        await shell.standby("endpoints", "create", "chat", "--model", "smol", "--weights", "same", "--keep-ready", "10m")
        answered = await shell.standby("invoke", "chat", "--prompt", QUESTION, "--max-tokens", "24", "--temperature", "0")
        cached = await shell.standby("cache", "ls")
        in_use = await shell.standby("cache", "evict", "--model", "smol", "--weights", "same", code=5)

        async def heard() -> bool:
            """The node says what it holds with its next heart beat."""
            return "000000000000/smol (same)" in (await shell.standby("nodes")).out

        await until(heard, "the node's record has it", DEADLINE_S)
        held = await shell.standby("nodes")
        (engine,) = run_dir(running.state / "node").glob("chat-*/spec.json")
        logs = "".join(log.read_text() for log in (running.state / "logs").glob("*.log"))
        told = engine.read_text() + logs + registered.out + cached.out + held.out
        journal = b"".join(file.read_bytes() for file in (running.state / "nats").rglob("*.blk"))

    assert "no credentials for bucket 'models'" in without.err
    assert answered.out.strip() == PARIS
    assert f"{real_model_path().stat().st_size / 1e6:.1f} MB" in cached.out
    assert "000000000000/smol (same)" in cached.out
    assert "000000000000/smol (same)" in held.out
    assert "is in use by chat-" in in_use.err
    for key in (s3.secret_key, s3.access_key):
        assert key not in told
        assert key.encode() not in journal
    assert b"own" in journal
