"""The adapter of TensorRT-LLM against a stand-in of its program: start, readiness, load, sleep, end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from standby.domain.errors import EngineError, EngineStartFailed, InvalidInput
from standby.domain.node import DeviceKind
from standby.domain.priority import Priority, engine_priority
from standby.runtime.engines.base import EngineHandle, EngineLoad, failure_of
from standby.runtime.engines.loopback_ports import LOOPBACK
from standby.runtime.engines.tensorrt_llm import TensorRtLlm
from standby.runtime.process_group import members
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import proportional
from support.fake_engine_spec import SERVED_NAME, running
from support.trtllm import HOT_OR_COLD, SLEEPING, trtllm_adapter, trtllm_spec
from support.waiting import until

LIMIT_S = 60.0
BOTH = pytest.mark.parametrize("version", [HOT_OR_COLD, SLEEPING])


def client(handle: EngineHandle) -> httpx.AsyncClient:
    assert isinstance(handle.address, tuple)
    host, port = handle.address
    return httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=LIMIT_S)


async def status_of(handle: EngineHandle, **body: object) -> int:
    asked = {"model": SERVED_NAME, "prompt": "Hi", "max_tokens": 1, **body}
    async with client(handle) as http:
        return (await http.post("/v1/completions", json=asked)).status_code


@BOTH
async def test_it_is_ready_when_it_has_generated_a_token_however_it_behaves_until_then(
    ledger: ProcessLedger, run_dir: Path, version: str
) -> None:
    """1.2 refuses connections, later versions answer 503 to everything (field case B10)."""
    engine = trtllm_adapter(ledger, version)
    async with running(engine, trtllm_spec(run_dir, version=version, ready_after_s=0.4)) as handle:
        probe = await engine.probe(handle, LIMIT_S, tokens=4, margins=True)
    assert probe.pieces == ("The", " capital", " of", " France")
    assert all(margin > 2 for margin in probe.margins)


async def test_health_that_lies_is_not_believed(ledger: ProcessLedger, run_dir: Path) -> None:
    """Its /health is 200 while nothing can be generated (field case B10)."""
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir, generation_fails=True), loaded=False) as handle:
        with pytest.raises(EngineStartFailed, match="generates nothing, it answers 500") as caught:
            await engine.wait_loaded(handle, LIMIT_S)
    assert failure_of(caught.value).code == "engine_generates_nothing"


async def test_an_engine_that_never_generates_runs_into_the_limit(ledger: ProcessLedger, run_dir: Path) -> None:
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir, stall=True), loaded=False) as handle:
        with pytest.raises(EngineStartFailed, match=r"did not load within 0\.8 s"):
            await engine.wait_loaded(handle, 0.8)


async def test_a_key_that_the_engine_does_not_know_ends_its_start_with_the_keys_name(
    ledger: ProcessLedger, run_dir: Path
) -> None:
    """Its configuration is strict; an option of a newer version must not be written for an older one."""
    boasting = replace(trtllm_adapter(ledger)._program, priorities=True)
    engine = TensorRtLlm(ledger, boasting)
    spec = trtllm_spec(run_dir, version=HOT_OR_COLD, options={"priority": True})
    async with running(engine, spec, loaded=False) as handle:
        with pytest.raises(EngineStartFailed, match="engine ended while it loaded: exit code 1"):
            await engine.wait_loaded(handle, LIMIT_S)
        assert "waiting_queue_policy" in handle.log.read_text()


async def test_a_port_that_was_taken_meanwhile_is_said_and_the_next_start_gets_another(
    ledger: ProcessLedger, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our look and the engine's bind anybody may take it: the interpreter needs seconds."""
    engine = trtllm_adapter(ledger)
    with closing(socket.socket()) as thief:
        thief.bind((LOOPBACK, 0))
        taken = int(thief.getsockname()[1])
        with monkeypatch.context() as patched:
            patched.setattr(engine._ports, "take", lambda: taken)
            async with running(engine, trtllm_spec(run_dir), loaded=False) as handle:
                with pytest.raises(EngineStartFailed, match=f"port {taken} was taken by another program") as caught:
                    await engine.wait_loaded(handle, LIMIT_S)
        assert failure_of(caught.value).code == "engine_port_taken"
        async with running(engine, trtllm_spec(run_dir, epoch=2)) as handle:
            assert handle.address != (LOOPBACK, taken)


async def test_what_is_secret_stands_in_no_process_list(ledger: ProcessLedger, run_dir: Path) -> None:
    """Workers inherit the key, and each engine has its own."""
    engine = trtllm_adapter(ledger, SLEEPING)
    keys: list[str] = []
    for epoch in (1, 2):
        async with running(engine, trtllm_spec(run_dir, version=SLEEPING, epoch=epoch)) as handle:
            pids = [stat.pid for stat in members(handle.process.mark)]
            assert len(pids) == 3
            keys.append(engine._runs[handle.folder].key)
            assert f"TRTLLM_RUNTIME_CONTROL_API_KEY={keys[-1]}" in environment_of(handle.pid)
            assert all(keys[-1].encode() not in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
            assert keys[-1] not in repr(engine._runs)
    assert keys[0] != keys[1]


async def test_it_sees_the_devices_it_was_given_and_looks_nothing_up_outside(ledger: ProcessLedger, run_dir: Path) -> None:
    engine = trtllm_adapter(ledger)
    spec = trtllm_spec(run_dir).model_copy(update={"devices": ("GPU-1", "GPU-2")})
    async with running(engine, spec) as handle:
        assert {"CUDA_VISIBLE_DEVICES=GPU-1,GPU-2", "HF_HUB_OFFLINE=1"} <= environment_of(handle.pid)


def environment_of(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/environ").read_text().split("\0"))


async def test_everything_is_in_the_file_and_the_command_line_has_the_rest(ledger: ProcessLedger, run_dir: Path) -> None:
    """An option on the command line is overruled by the file in one version, and overrules it in the next."""
    engine = trtllm_adapter(ledger)
    folder = run_dir / "trt1-1"
    folder.mkdir()
    spec = trtllm_spec(run_dir, slots=3, options={"kv_mib": 64, "cuda_graphs": "off"}).model_copy(
        update={"devices": ("GPU-1",)}
    )
    command = list(engine.command(spec, folder / "unused", folder))
    model = command.index(str(folder / "model" / "smol-135m"))
    assert [part for part in command[model + 1 :] if part.startswith("--")] == ["--backend", "--host", "--port", "--config"]
    config = json.loads((folder / "config.yaml").read_bytes())
    assert config["max_batch_size"] == 3
    assert config["kv_cache_config"]["max_gpu_total_bytes"] == 64 * 2**20
    assert config["cuda_graph_config"] is None


async def test_load_is_read_from_records_that_are_gone_once_read(ledger: ProcessLedger, run_dir: Path) -> None:
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir, token_delay_ms=20, tokens=10_000)) as handle, client(handle) as http:
        idle = await engine.load(handle, LIMIT_S)
        assert idle.running == 0
        asked = {"model": SERVED_NAME, "prompt": "Hi", "stream": True}
        async with http.stream("POST", "/v1/completions", json=asked) as answer:
            await anext(answer.aiter_lines())
            first = await engine.load(handle, LIMIT_S)
            assert first.running == 1
            assert first.progress is not None
            await until(lambda: grown(engine, handle, first), "progress grows")


async def test_an_engine_that_was_stopped_between_two_looks_says_so(ledger: ProcessLedger, run_dir: Path) -> None:
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir)) as handle:
        pass
    with pytest.raises(EngineError, match="stopped meanwhile"):
        await engine.load(handle, 1)


async def grown(engine: TensorRtLlm, handle: EngineHandle, before: EngineLoad) -> bool:
    now = await engine.load(handle, LIMIT_S)
    return now.running == 1 and (now.progress or 0) > (before.progress or 0)


async def test_a_load_that_does_not_come_in_time_is_unknown_not_idle(ledger: ProcessLedger, run_dir: Path) -> None:
    """An idle engine of 1.2 waits for a record before it answers."""
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir, metrics_wait_s=5)) as handle:
        await engine.load(handle, 10)
        with pytest.raises(EngineError, match=r"did not answer /metrics within 0\.1 s"):
            await engine.load(handle, 0.1)


async def test_metrics_of_requests_exist_where_they_were_asked_for(ledger: ProcessLedger, run_dir: Path) -> None:
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir)) as handle:
        assert await engine.metrics(handle, 5) == {}
    async with running(engine, trtllm_spec(run_dir, epoch=2, options={"request_metrics": True})) as handle:
        await engine.probe(handle, LIMIT_S)
        assert (await engine.metrics(handle, 5))["trtllm_request_success_total"] == 1


async def test_an_engine_that_refuses_alternatives_is_probed_without_margins(ledger: ProcessLedger, run_dir: Path) -> None:
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir, refuse_logprobs=True)) as handle:
        probe = await engine.probe(handle, LIMIT_S, tokens=2, margins=True)
    assert probe.pieces == ("The capital",)
    assert probe.margins == ()


@pytest.mark.parametrize("level", Priority)
async def test_our_priorities_are_legal_there_and_others_are_refused(
    ledger: ProcessLedger, run_dir: Path, level: Priority
) -> None:
    engine = trtllm_adapter(ledger, SLEEPING)
    spec = trtllm_spec(run_dir, version=SLEEPING, options={"priority": True})
    async with running(engine, spec) as handle:
        assert await status_of(handle, priority=engine_priority(engine.kind, level)) == 200
        assert await status_of(handle, priority=engine_priority(engine.kind, level) * -10 - 1) == 400  # type: ignore[operator]


def test_an_older_version_refuses_the_priority_option_before_anything_is_started(ledger: ProcessLedger) -> None:
    with pytest.raises(InvalidInput, match=r"TensorRT-LLM 1\.2\.1 does not serve by priority"):
        trtllm_adapter(ledger).check({"priority": True})
    trtllm_adapter(ledger, SLEEPING).check({"priority": True})


async def test_hot_or_cold_says_so_and_stays_ready(ledger: ProcessLedger, run_dir: Path) -> None:
    engine = trtllm_adapter(ledger)
    assert not engine.capabilities.sleep
    assert engine.capabilities.device is DeviceKind.GPU
    async with running(engine, trtllm_spec(run_dir)) as handle:
        with pytest.raises(EngineError, match="cannot sleep: it is hot or cold"):
            await engine.suspend(handle)
        assert (await engine.probe(handle, LIMIT_S)).pieces == ("The",)


async def test_a_version_that_sleeps_gives_its_workers_memory_back_and_takes_it_again(
    ledger: ProcessLedger, run_dir: Path
) -> None:
    engine = trtllm_adapter(ledger, SLEEPING)
    async with running(engine, trtllm_spec(run_dir, version=SLEEPING, worker_mib=64)) as handle:
        assert engine.capabilities.sleep
        result = await engine.suspend(handle)
        assert result.resident_before - result.resident_after > 60 * 2**20
        assert result.resident_after == pytest.approx(held(handle), rel=0.05)
        assert result.depth == "released"
        await engine.resume(handle)
        assert held(handle) - result.resident_after > 60 * 2**20
        assert (await engine.probe(handle, LIMIT_S)).pieces == ("The",)


def held(handle: EngineHandle) -> int:
    return sum(proportional(stat.pid) or 0 for stat in members(handle.process.mark))


async def test_files_that_promise_sleep_are_not_believed_where_the_routes_are_missing(
    ledger: ProcessLedger, run_dir: Path
) -> None:
    engine = trtllm_adapter(ledger, SLEEPING)
    async with running(engine, trtllm_spec(run_dir, version=SLEEPING, no_memory_routes=True)) as handle:
        assert not engine.capabilities.sleep
        with pytest.raises(EngineError, match="cannot sleep"):
            await engine.suspend(handle)


async def test_memory_routes_obey_nobody_else(ledger: ProcessLedger, run_dir: Path) -> None:
    """Whoever has an account here reaches the port; the routes ask for a signature."""
    engine = trtllm_adapter(ledger, SLEEPING)
    async with running(engine, trtllm_spec(run_dir, version=SLEEPING)) as handle, client(handle) as http:
        assert (await http.post("/release_memory")).status_code == 401
        assert (await engine.probe(handle, LIMIT_S)).pieces == ("The",)


async def test_a_request_that_never_ends_does_not_hold_up_the_end(ledger: ProcessLedger, run_dir: Path) -> None:
    """After SIGTERM it waits for running requests without limit (field case B18)."""
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir, token_delay_ms=60_000)) as handle:
        asking = asyncio.ensure_future(status_of(handle))
        await until(lambda: stats_active(handle), "the request runs")
        assert (await engine.stop(handle, 0.3)).words == "killed by signal 9 (SIGKILL)"
        assert members(handle.process.mark) == ()
        with pytest.raises(httpx.HTTPError):
            await asking


async def stats_active(handle: EngineHandle) -> bool:
    async with client(handle) as http:
        return bool((await http.get("/stats")).json()["active"])


@pytest.mark.parametrize("loaded", [True, False], ids=["ready", "loading"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_workers_in_sessions_of_their_own_are_found_by_their_mark(
    ledger: ProcessLedger, run_dir: Path, number: signal.Signals, loaded: bool
) -> None:
    """The parent's end leaves them: they were started by MPI, or it was told to end before it was ready (field case B30)."""
    engine = trtllm_adapter(ledger)
    spec = trtllm_spec(run_dir, worker_mib=16, ready_after_s=0 if loaded else 60)
    async with running(engine, spec, loaded=loaded) as handle:
        await until(lambda: len(members(handle.process.mark)) == 3, "parent, orted and worker")
        sessions = {stat.session for stat in members(handle.process.mark)}
        assert len(sessions) == 3
        handle.process.send(number)
        await asyncio.wait_for(handle.exited, LIMIT_S)
        if number is signal.SIGKILL or not loaded:
            assert len(members(handle.process.mark)) == 2
        await engine.stop(handle, 1)
        assert members(handle.process.mark) == ()
    assert engine._runs == {}


async def test_two_instances_have_two_ports(ledger: ProcessLedger, run_dir: Path) -> None:
    engine = trtllm_adapter(ledger)
    async with (
        running(engine, trtllm_spec(run_dir, instance="one")) as one,
        running(engine, trtllm_spec(run_dir, instance="two")) as two,
    ):
        assert one.address != two.address
        assert (await engine.probe(one, LIMIT_S)).pieces == (await engine.probe(two, LIMIT_S)).pieces


async def test_an_engine_that_answers_503_for_ever_fails_its_probe_in_time(ledger: ProcessLedger, run_dir: Path) -> None:
    """Alive, and of no use to anybody (field case B32)."""
    engine = trtllm_adapter(ledger)
    async with running(engine, trtllm_spec(run_dir, unavailable_after=0)) as handle:
        await status_of(handle)
        with pytest.raises(EngineError, match=r"no token within 0\.3 s"):
            await engine.probe(handle, 0.3)
