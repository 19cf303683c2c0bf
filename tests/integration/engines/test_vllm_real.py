"""Real vLLM with the real model on a processor: forked starts, sleep, and what is left when one of its processes dies."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from standby.domain.errors import EngineError, EngineStartFailed
from standby.runtime.engines.base import EngineHandle, failure_of
from standby.runtime.engines.vllm import Vllm
from standby.runtime.engines.vllm_arguments import arguments
from standby.runtime.foreign import roots
from standby.runtime.process_group import members
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import process_stat
from standby.runtime.zygote.host import Zygote
from standby.warm_pool import profile_recorders
from support.engine_client import ANSWER, QUESTION, ask, client, text_of
from support.fake_engine_spec import running, short_dir
from support.safetensors_twin import twin_folder
from support.vllm import hatched, needs_vllm, vllm_program, vllm_python, vllm_spec
from support.waiting import until

pytestmark = [pytest.mark.vllm, needs_vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

PROMPT: Final = "The capital of France is"
PLAIN_START_LIMIT_S: Final = 120.0

# Runs in vLLM's interpreter: its own parser on our arguments, and what it made of some of them.
PARSE: Final = """
import json, sys
sys.path.extend(json.loads(sys.argv[1]))
from standby.runtime.engines.vllm_compat import Parser
found = []
for arguments in json.loads(sys.argv[2]):
    parsed = Parser.parse(arguments)
    found.append({name: repr(getattr(parsed, name)) for name in json.loads(sys.argv[3])})
print(json.dumps(found))
"""


@dataclass
class Rig:
    """A zygote and the adapter whose engines are forked from it."""

    zygote: Zygote
    adapter: Vllm
    ledger: ProcessLedger
    run_dir: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig() -> AsyncIterator[Rig]:
    with short_dir() as folder:
        ledger = ProcessLedger(folder / "ledger")
        async with hatched(ledger, folder) as zygote:
            yield Rig(zygote, Vllm(ledger, vllm_program(), lambda _: zygote), ledger, folder)
        assert ledger.survivors() == ()
        assert ledger.records() == ()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(rig: Rig) -> AsyncIterator[EngineHandle]:
    """One engine for all questions."""
    async with running(rig.adapter, vllm_spec(rig.run_dir, instance="served")) as handle:
        yield handle


@pytest.fixture
def nothing_left(rig: Rig) -> Iterator[None]:
    before = set(rig.ledger.survivors())
    yield
    assert set(rig.ledger.survivors()) == before


def processes_of(handle: EngineHandle) -> set[int]:
    return {stat.pid for stat in members(handle.process.mark, group=handle.pid)}


def engine_core(handle: EngineHandle) -> int:
    """The process that computes: of the two, the one that did not come from the zygote."""
    (pid,) = processes_of(handle) - {handle.pid}
    return pid


async def test_a_forked_engine_answers_in_two_processes(rig: Rig, served: EngineHandle) -> None:
    assert rig.zygote.usable
    assert rig.zygote.forks >= 1
    assert text_of(await ask(served)) == ANSWER
    assert len(processes_of(served)) == 2


async def test_what_it_leaves_in_temporary_folders_is_its_own(rig: Rig, served: EngineHandle) -> None:
    """A fork remembered the zygote's folder, the machine's own: one file more for ever with each start."""
    ours = {path.name for path in rig.run_dir.glob("*/vllm_dist_*")}
    name = next(word for word in served.log.read_text().split() if word.startswith("distributed_init_method="))
    assert name.rpartition("/")[2] in ours


async def test_the_same_request_id_twice_at_once_is_answered_twice(served: EngineHandle) -> None:
    async def once() -> dict[str, Any]:
        async with client(served) as http:
            answer = await http.post("/v1/chat/completions", json=QUESTION, headers={"X-Request-Id": "same"})
        content: dict[str, Any] = answer.json()
        return content

    both = await asyncio.gather(once(), once())
    assert [text_of(answer) for answer in both] == [ANSWER, ANSWER]


async def test_sampling_and_probabilities_need_no_compiler(rig: Rig, served: EngineHandle) -> None:
    """vLLM compiles small functions for both when they are first needed, more than ten seconds long, even when eager."""
    async with asyncio.timeout(8):
        probed = await rig.adapter.probe(served, 8, prompt=PROMPT, tokens=2, margins=True)
        await ask(served, temperature=0.8, top_p=0.9, top_k=20)
    assert probed.pieces[0] == " Paris"
    assert probed.margins[0] > 0.5


async def test_a_grammar_is_obeyed_by_an_engine_that_loads_its_tokenizer_late(served: EngineHandle) -> None:
    answer = await ask(served, structured_outputs={"choice": ["Lyon", "Nantes"]})
    assert text_of(answer) in ("Lyon", "Nantes")


async def test_an_engine_that_sleeps_gives_memory_back_and_answers_the_same(rig: Rig, served: EngineHandle) -> None:
    """Twice, as what was given back must be there again. Untouched cache that went at the first time does not come back."""
    given_back: list[int] = []
    for _ in range(2):
        before = await rig.adapter.probe(served, 60, prompt=PROMPT, tokens=4)
        slept = await rig.adapter.suspend(served)
        states = {pid: process_stat(pid) for pid in processes_of(served)}
        assert all(stat is not None and stat.stopped for stat in states.values())
        given_back.append(slept.resident_before - slept.resident_after)
        assert "cannot be given back" in slept.kept
        await rig.adapter.resume(served)
        assert (await rig.adapter.probe(served, 60, prompt=PROMPT, tokens=4)).pieces == before.pieces
    assert given_back[0] > 60 * 2**20


async def test_a_killed_engine_core_takes_the_api_process_with_it(rig: Rig, nothing_left: None) -> None:
    async with running(rig.adapter, vllm_spec(rig.run_dir, instance="core")) as handle:
        os.kill(engine_core(handle), signal.SIGKILL)
        with pytest.raises(EngineError):
            await rig.adapter.probe(handle, 5)
        await asyncio.wait_for(handle.exited, 60)
        await until(lambda: processes_of(handle) == set(), "all of it has ended")


async def test_a_killed_api_process_takes_engine_core_with_it(rig: Rig, nothing_left: None) -> None:
    """vLLM itself leaves an orphan with all the memory."""
    async with running(rig.adapter, vllm_spec(rig.run_dir, instance="api")) as handle:
        core = engine_core(handle)
        handle.process.send(signal.SIGKILL)
        await asyncio.wait_for(handle.exited, 60)
        await until(lambda: (stat := process_stat(core)) is None or not stat.alive, "EngineCore has ended")


async def test_sigterm_during_the_start_ends_all_of_it(rig: Rig, nothing_left: None) -> None:
    async with running(rig.adapter, vllm_spec(rig.run_dir, instance="term"), loaded=False) as handle:
        await until(lambda: len(processes_of(handle)) == 2, "EngineCore is there")
        handle.process.send(signal.SIGTERM)
        with pytest.raises(EngineStartFailed, match="SIGTERM"):
            await rig.adapter.wait_loaded(handle, 90)
        await until(lambda: processes_of(handle) == set(), "all of it has ended")


def broken(case: str, folder: Path) -> Path:
    """A copy of the real model that lacks something."""
    folder.mkdir()
    for path in twin_folder().iterdir():
        if case == "no tokenizer" and path.name.startswith("tokenizer"):
            continue
        with path.open("rb") as stream:
            content = stream.read(50_000_000)  # all of each file but the weights
        (folder / path.name).write_bytes(content)
        if path.suffix == ".safetensors" and case != "weights cut short":
            (folder / path.name).unlink()
            (folder / path.name).symlink_to(path)
    config = json.loads((folder / "config.json").read_text())
    if case == "code of its own":
        config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
        (folder / "own.py").write_text(f"open({str(folder / 'executed')!r}, 'w').close()\nclass Config: pass\n")
    elif case == "unknown architecture":
        config |= {"architectures": ["NoSuchForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("case", "words", "forked"),
    [
        ("no tokenizer", "backend tokenizer", True),
        ("no tokenizer", "backend tokenizer", False),
        ("weights cut short", "SafetensorError", True),
        ("code of its own", "custom code", True),
        ("unknown architecture", "NoSuchForCausalLM", True),
    ],
)
async def test_a_model_that_cannot_be_served_says_why_at_once(
    rig: Rig, nothing_left: None, case: str, words: str, forked: bool
) -> None:
    """The first error is not a warning that vLLM writes at every start, and code that a model brings is never run."""
    adapter = rig.adapter if forked else Vllm(rig.ledger, vllm_program())
    model = broken(case, rig.run_dir / f"broken-{forked}-{case.replace(' ', '-')}")
    async with running(adapter, vllm_spec(rig.run_dir, instance="broken", model=model), loaded=False) as handle:
        with pytest.raises(EngineStartFailed) as caught:
            await adapter.wait_loaded(handle, 90 if forked else PLAIN_START_LIMIT_S)
        failure = failure_of(caught.value)
    assert failure.reason == "engine ended while it loaded: exit code 1"
    assert words in failure.first_error
    assert not (model / "executed").exists()


async def test_where_the_fork_fails_it_is_started_plainly(
    rig: Rig, nothing_left: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The zygote that the adapter is given has ended."""
    ended = Zygote(rig.adapter.zygote_plan, ledger=rig.ledger, log=rig.run_dir / "never.log")
    adapter = Vllm(rig.ledger, vllm_program(), lambda _: ended)
    handle = await adapter.start(vllm_spec(rig.run_dir, instance="plain"))
    try:
        await adapter.wait_loaded(handle, PLAIN_START_LIMIT_S)
        assert text_of(await ask(handle)) == ANSWER
        assert "started without a zygote" in caplog.text
    finally:
        await adapter.stop(handle, 5)


async def test_vllms_own_parser_takes_every_option(rig: Rig) -> None:
    """Once with each loader and with each kind of speculation, on a GPU and on a processor."""
    everything: dict[str, str | int | bool] = {
        "context": 1024, "kv_cache_mib": 64, "dtype": "float32", "kv_type": "fp8", "enforce_eager": False,
        "capture_sizes": "1,2", "load_strategy": "prefetch", "load_format": "runai_streamer", "prefix_caching": False,
        "priority": True, "max_batched_tokens": 4096, "enable_lora": True, "max_loras": 2, "max_lora_rank": 32,
        "speculative": "ngram", "quantization": "awq", "seed": 7, "devices": 1,
    }  # fmt: skip
    variants: list[dict[str, str | int | bool]] = [
        everything,
        {"speculative": "suffix"},
        {"load_format": "fastsafetensors"},
        {"load_format": "instanttensor"},
        {},
    ]
    asked = [
        arguments(vllm_spec(rig.run_dir).model_copy(update={"options": options}), rig.run_dir / "x.sock", on_gpu=on_gpu)
        for options in variants
        for on_gpu in (True, False)
    ]
    wanted = ["max_model_len", "kv_cache_memory_bytes", "scheduling_policy", "max_lora_rank", "speculative_config", "seed"]
    words = [json.dumps(part) for part in (roots(), asked, wanted)]
    done = await asyncio.to_thread(
        subprocess.run,
        [str(vllm_python()), "-c", PARSE, *words],
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == len(asked)
    first = found[0]
    assert (first["max_model_len"], first["kv_cache_memory_bytes"]) == ("1024", str(64 * 2**20))
    assert (first["scheduling_policy"], first["max_lora_rank"], first["seed"]) == ("'priority'", "32", "7")
    assert "'num_speculative_tokens': 4" in first["speculative_config"]


async def test_an_engine_started_for_it_is_traced_while_it_works(
    rig: Rig, tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few steps only, since it serves nobody while it writes them; afterwards it answers as before.

    Python's stacks are those of both of its processes, although the first one is a fork of a zygote.
    """
    monkeypatch.setattr(profile_recorders, "TORCH_STEPS", 4)
    stop, py_spy = asyncio.Event(), profile_recorders.find_py_spy()
    assert py_spy is not None, "a part of the development environment"
    async with running(rig.adapter, vllm_spec(rig.run_dir, instance="traced", profile=True)) as handle:
        working = asyncio.create_task(ask(handle, max_tokens=64, ignore_eos=True))
        recorders = (
            profile_recorders.TorchTrace("traced", handle),
            profile_recorders.Stacks(py_spy, "traced", handle.pid, "instance traced"),
        )
        left = await asyncio.gather(*(one.record(tmp_path, 1, stop) for one in recorders))
        await working
        assert text_of(await ask(handle)) == ANSWER
    assert left == [[], []]
    assert "EngineCore.step" in (tmp_path / "traced.flame.svg").read_text()
    (trace,) = tmp_path.glob("traced.torch.*.pt.trace.json.gz")
    names = {event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}
    assert "_C::cpu_attention_with_kv_cache" in names
    (table,) = tmp_path.glob("traced.torch.*.txt")
    assert "Self CPU" in table.read_text()


async def test_an_engine_that_was_not_started_for_it_says_so(served: EngineHandle, tmp_path: Path) -> None:
    (left,) = await profile_recorders.TorchTrace("served", served).record(tmp_path, 1, asyncio.Event())
    assert "/start_profile was answered with 404" in left.reason
