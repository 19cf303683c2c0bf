"""A deployment for benchmarks of traffic: ``standby up`` as its user has it, one model in both formats, its endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psutil

from standby.runtime.process_ledger import ProcessLedger
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, short_dir
from support.real_model import real_model_path
from support.s3_server import s3_server
from support.safetensors_twin import twin_folder
from support.traffic_load import Caller
from support.user import Up, up
from support.vllm import vllm_python
from support.waiting import until

START_S: Final = 150.0
MODEL: Final = "smol"
_AWAY_S: Final = 60.0

Backends = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Served:
    """An endpoint whose engines are all ready; ``caller`` asks it."""

    place: Up
    name: str
    caller: Caller

    async def instances(self) -> dict[str, Any]:
        """The newest instance of each backend, by its label; "" where there are no several."""
        return {one["backend"]: one for one in (await self.place.show(self.name))["instances"]}

    async def until_ready(self, backend: str, but_epoch: int | None = None, within_s: float = START_S) -> None:
        """Wait until the backend has a ready instance, of another epoch than this."""

        async def ready() -> bool:
            one = (await self.instances()).get(backend)
            return one is not None and one["state"] == "ready" and one["epoch"] != but_epoch

        await until(ready, f"{backend} of {self.name} is ready", within_s)

    async def past(self, limit: int = 200) -> list[Any]:
        """What the gateway remembers of the endpoint's last requests, the newest first."""
        found: list[Any] = (await self.place.call("GET", f"/requests?endpoint={self.name}&limit={limit}"))["requests"]
        return found

    def kill(self, instance: Mapping[str, Any]) -> None:
        """End every process of an instance's engine, as the kernel would for want of memory."""
        for record in ProcessLedger(self.place.state / "node" / "processes").records():
            if record.instance == instance["id"] and record.pid is not None:
                with suppress(psutil.Error):
                    first = psutil.Process(record.pid)
                    for one in (first, *first.children(recursive=True)):
                        one.kill()


@asynccontextmanager
async def place_of_engines() -> AsyncIterator[Up]:
    """``standby up`` beside a real S3 server with the model as GGUF, and as safetensors where vLLM is there."""
    with short_dir() as home:
        async with s3_server(home, "models") as s3:
            await s3.upload("models", "smollm2/model.gguf", real_model_path())
            python = vllm_python()
            settings = {**s3.env(), "STANDBY_FAKE_ENGINE": str(FAKE_ENGINE_PROGRAM)}
            model: dict[str, Any] = {"name": MODEL, "source_uri": "s3://models/smollm2/"}
            if python is not None:
                for path in twin_folder().iterdir():
                    await s3.upload("models", f"twin/{path.name}", path)
                settings["STANDBY_VLLM_PYTHON"] = str(python)
                model["weights"] = {"full": {"source_uri": "s3://models/twin/"}}
            async with up(home / "state", settings) as place:
                await place.call("POST", "/models", model)
                yield place


@asynccontextmanager
async def endpoint(place: Up, name: str, backends: Backends, traffic: Mapping[str, Any]) -> AsyncIterator[Served]:
    """An endpoint of these engines, each of which stays ready; deleted at the end, with its processes."""
    body = {
        "name": name,
        "model": MODEL,
        "backends": [{"min_ready": 1, **backend} for backend in backends],
        "policy": {"max_cold_wait": "4m"},
        "traffic": dict(traffic),
    }
    await place.call("POST", "/endpoints", body)
    try:
        served = Served(place, name, Caller(place.url, place.key, (await place.show(name))["served_name"]))
        for backend in backends:
            await served.until_ready(str(backend.get("name") or backend["engine"]))
        yield served
    finally:
        await place.call("DELETE", f"/endpoints/{name}")

        async def gone() -> bool:
            listed = (await place.call("GET", "/endpoints"))["endpoints"]
            return all(one["name"] != name for one in listed)

        await until(gone, f"{name} is away", _AWAY_S)
