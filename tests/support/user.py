"""standby as its user has it: a shell with the command, and ``standby up`` as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from support.reality import alive
from support.waiting import until

BIN = Path(sys.executable).parent
DEADLINE_S = 60.0
QUESTION = "Name the capital of France."
PARIS = "The capital of France is Paris."


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, read as JSON."""
        return json.loads(self.out)


@dataclass
class Shell:
    """A user's shell; every command is a process of its own."""

    environment: Mapping[str, str]

    async def standby(self, *words: str, code: int = 0, stdin: bytes | None = None, **more: str) -> Ran:
        """Run ``standby words…``, which must end with ``code``; ``more`` are variables of the environment."""
        return await self.run([str(BIN / "standby"), *words], code, more, stdin=stdin)

    async def line(self, text: str, code: int = 0) -> Ran:
        """Run one line as the shell would."""
        return await self.run(["bash", "-c", text], code, {})

    async def run(
        self,
        command: list[str],
        code: int,
        more: Mapping[str, str],
        *,
        stdin: bytes | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Ran:
        """Run any command, which must end with ``code`` and without a traceback; ``more`` are variables."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**self.environment, **more},
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(deadline_s):
                out, err = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        ran = Ran(process.returncode, out.decode(), err.decode())
        assert ran.code == code, (command, ran)
        assert "Traceback" not in ran.err, ran.err
        return ran


def environment(state: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user whose state folder is ``state``: nothing of standby's or AWS's own but ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STANDBY_", "AWS_"))}
    path = f"{BIN}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "STANDBY_STATE_DIR": str(state), "COLUMNS": "80", **(more or {})}


@dataclass
class Up:
    """A running ``standby up``, a shell beside it and an administrator's HTTP client."""

    process: asyncio.subprocess.Process
    state: Path
    log: Path
    shell: Shell
    url: str
    key: str
    api: httpx.AsyncClient
    _seen: set[psutil.Process] = field(default_factory=set)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and return its exit code."""
        self.remember()
        if self.process.returncode is None:
            self.process.send_signal(number)
        async with asyncio.timeout(DEADLINE_S):
            return await self.process.wait()

    def remember(self) -> None:
        """Note every process that runs below it now."""
        if self.process.returncode is None:
            self._seen.update(psutil.Process(self.process.pid).children(recursive=True))

    def leftovers(self) -> list[psutil.Process]:
        """Those of the noted processes that still run."""
        return [item for item in self._seen if alive(item)]

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Make one call of the control API, which must succeed."""
        answer = await self.api.request(method, f"/api/v1{path}", json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def serve(self, name: str, uri: str, *, served_name: str | None = None, **policy: object) -> None:
        """Register the model at ``uri`` and create an endpoint at zero, both called ``name``."""
        await self.call("POST", "/models", {"name": name, "source_uri": uri})
        body = {"name": name, "model": name, "served_name": served_name, "policy": policy}
        await self.call("POST", "/endpoints", body)

    async def show(self, endpoint: str) -> Any:
        """The endpoint as the control API shows it."""
        return await self.call("GET", f"/endpoints/{endpoint}")

    async def ask(self, endpoint: str, question: str = QUESTION, **more: object) -> httpx.Response:
        """Ask an endpoint by ``messages``, greedily; whatever the answer."""
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24, **more}
        return await self.api.post(f"/endpoints/{endpoint}/invocations", json=body)

    async def until_resting(self, endpoint: str, state: str) -> Any:
        """Return the endpoint's only instance once it is in ``state``."""
        found: list[Any] = []

        async def resting() -> bool:
            found[:] = (await self.show(endpoint))["instances"]
            return [item["state"] for item in found] == [state]

        try:
            await until(resting, f"{endpoint} is {state}", DEADLINE_S)
        except AssertionError as error:
            tail = "\n".join(self.log.read_text().splitlines()[-60:])
            raise AssertionError(f"{error}; it is {await self.show(endpoint)}; the last said:\n{tail}") from None
        return found[0]


@asynccontextmanager
async def up(state: Path, more: Mapping[str, str] | None = None, *options: str) -> AsyncIterator[Up]:
    """Start ``standby up`` with its state in ``state`` and wait until it says where it is; stop it at the end."""
    shell = Shell(environment(state, more))
    log = state.with_name(f"{state.name}-up.log")
    with log.open("ab") as written:
        process = await asyncio.create_subprocess_exec(
            BIN / "standby", "up", "--port", "0", *options,
            env=dict(shell.environment), stdin=asyncio.subprocess.DEVNULL, stdout=written, stderr=written,
            start_new_session=True,
        )  # fmt: skip
    connection = state / "connection.json"

    async def connected() -> bool:
        assert process.returncode is None, log.read_text()
        return connection.exists()

    try:
        await until(connected, "standby up is ready", DEADLINE_S)
        known = json.loads(connection.read_text())
        headers = {"authorization": f"Bearer {known['api_key']}"}
        async with httpx.AsyncClient(base_url=known["url"], headers=headers, timeout=DEADLINE_S, trust_env=False) as api:
            running = Up(process, state, log, shell, known["url"], known["api_key"], api)
            yield running
            await running.stop()
        await until(lambda: not running.leftovers(), "nothing is left of it")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
