"""The peer: Ray Serve, resting at no replica, around the very llama.cpp program that standby's own engine is."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from standby.artifacts.local_s3 import free_ports
from standby.runtime.engines.child_protocol import PARENT_VARIABLE, READY_FD_VARIABLE
from standby.runtime.engines.llama_cpp_child import ChildSpec
from standby.runtime.engines.llama_cpp_options import LlamaCppOptions
from standby.runtime.foreign import foreign_command
from standby.runtime.process import EngineProcess
from support.coldstart_client import SERVED, StartFailedError, first_token
from support.coldstart_llama import SLOTS
from support.coldstart_program import program, tail
from support.coldstart_values import Sample
from support.real_model import real_model_path

_APP: Final = Path(__file__).with_name("coldstart_ray_app.py")
_CHILD: Final = "standby.runtime.engines.llama_cpp_child"
_OBJECT_STORE_BYTES: Final = 100 << 20
_READY_LIMIT_S: Final = 120.0
_ZERO_LIMIT_S: Final = 120.0
_END_LIMIT_S: Final = 20.0
_LOOK_S: Final = 0.25


@dataclass
class RayStarts:
    """A running Ray with the deployment in it."""

    version: str
    _port: int
    _process: EngineProcess
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _prompts: Iterator[str]

    async def start(self) -> Sample:
        """Wait until no replica is left, and measure from a request to its first token."""
        await self._until_zero()
        began = time.perf_counter()
        token = await first_token(("127.0.0.1", self._port), next(self._prompts), self._process)
        return Sample(token.at - began, details={"engine": float(token.headers["x-engine-loaded-s"])})

    async def _until_zero(self) -> None:
        async with asyncio.timeout(_ZERO_LIMIT_S):
            while (await self._ask())["replicas"]:
                await asyncio.sleep(_LOOK_S)

    async def _ask(self) -> dict[str, Any]:
        self._writer.write(b"replicas\n")
        return await _answer(self._reader)


@asynccontextmanager
async def ray_serve(python: Path, folder: Path, prompts: Iterator[str]) -> AsyncIterator[RayStarts]:
    """Yield the peer; all of Ray is gone at the end. Raises StartFailedError."""
    log = folder / "ray.log"
    ours, theirs = socket.socketpair()
    (port,) = free_ports(1)
    asked = {
        "folder": str(folder),
        "temporary": str(folder / "ray"),
        "port": port,
        "control": theirs.fileno(),
        "object_store_bytes": _OBJECT_STORE_BYTES,
        "program": foreign_command("", _CHILD)[1:],
        "spec": _engine_spec(),
        "parent_variable": PARENT_VARIABLE,
        "ready_variable": READY_FD_VARIABLE,
    }
    # A token of its own: Ray would otherwise make one and leave it in the home folder.
    environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    command = [str(python), str(_APP), json.dumps(asked)]
    async with program(command, log, environment=environment, descriptors=(theirs.fileno(),)) as process:
        theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(_READY_LIMIT_S):
                ready = await _answer(reader)
            yield RayStarts(ready["ready"], port, process, reader, writer, prompts)
        except (TimeoutError, json.JSONDecodeError) as error:
            raise StartFailedError(f"Ray Serve did not do as it should: {error!r}\n{tail(log)}") from error
        finally:
            # Ray ends its own daemons when it is asked to; what is left after that is killed.
            writer.close()
            await asyncio.wait([process.exited], timeout=_END_LIMIT_S)


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await reader.readline())
    return answer


def _engine_spec() -> dict[str, Any]:
    """Return what standby's adapter would tell the program, but for the socket, which each replica has of its own."""
    model = (str(real_model_path().resolve()),)
    return asdict(
        ChildSpec(socket="", model_files=model, served_name=SERVED, slots=SLOTS, **LlamaCppOptions.parse({}).model_dump())
    )
