"""Profiles on a node: one at a time, bounded, kept and thrown away, and what is said where nothing can be recorded."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standby.domain.errors import Conflict, DiskFull, InvalidInput, NotFound
from standby.domain.instance import InstanceState
from standby.domain.model import EngineKind
from standby.domain.profiles import ProfileAction, ProfileAnswer, ProfileOrder, ProfileState
from standby.runtime.engines.base import EngineSpec
from standby.warm_pool import profiling
from standby.warm_pool.managed import Managed
from standby.warm_pool.nvidia_profilers import WORDS, command_lines, engine_command
from standby.warm_pool.profiling import KEPT, LEAST_FREE, Profiler, free_at
from support.waiting import until

RECORDING = {"shared": {"frames": [{"name": "f", "file": "a.py", "line": 3}]}, "profiles": []}


def instance(name: str = "e-1", state: InstanceState = InstanceState.READY, **changes: Any) -> Managed:
    """A managed instance, as far as a profiler looks at it; its engine is this process."""
    values: dict[str, Any] = {
        "id": name,
        "assignment": SimpleNamespace(tenant="t", endpoint="e", model=SimpleNamespace(engine=EngineKind.LLAMA_CPP)),
        "life": SimpleNamespace(state=state),
        "handle": SimpleNamespace(pid=os.getpid(), spec=SimpleNamespace(options={})),
        "devices": (),
    }
    return cast("Managed", SimpleNamespace(**{**values, **changes}))


def order(identity: str = "0123456789abcdef", action: ProfileAction = ProfileAction.START, **changes: Any) -> ProfileOrder:
    return ProfileOrder(**{"id": identity, "action": action, "tenant": "t", "endpoint": "e", "seconds": 60, **changes})


def a_py_spy(folder: Path, script: str) -> str:
    """A stand-in for py-spy: its arguments are in ``$@``, the output's path in ``$out``."""
    path = folder / "py-spy"
    path.write_text(f'#!/bin/sh\nout=""; while [ $# -gt 0 ]; do [ "$1" = --output ] && out="$2"; shift; done\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def until_told(content: object) -> str:
    """Write a recording when told to stop, as py-spy does."""
    return f"trap 'printf %s '\"'\"'{json.dumps(content)}'\"'\"' > $out; exit 0' INT; echo begun; while :; do sleep 0.01; done"


async def done(profiler: Profiler, identity: str = "0123456789abcdef") -> ProfileAnswer:
    """How the profile has ended."""
    look = order(identity, ProfileAction.LOOK)
    await until(lambda: profiler.carry_out(look).state is ProfileState.DONE)
    return profiler.carry_out(look)


async def test_an_order_is_answered_at_once_and_carried_out_once(tmp_path: Path) -> None:
    """The same id starts nothing new, another one is refused while it runs; stopped, it keeps what it has."""
    py_spy = a_py_spy(tmp_path, until_told(RECORDING))
    profiler = Profiler("n1", {"e-1": instance()}, tmp_path / "profiles", lambda: py_spy)
    first = ProfileAnswer.model_validate_json(await profiler.answer("", order().encode()))
    again = profiler.carry_out(order())
    with pytest.raises(Conflict, match="is recording profile 0123456789abcdef of endpoint 'e' already"):
        profiler.carry_out(order("ffffffffffffffff"))
    await until(lambda: bool(list(tmp_path.glob("profiles/*"))))
    profiler.carry_out(order(action=ProfileAction.STOP, by="ops"))
    ended = await done(profiler)
    await profiler.close()

    assert (first.state, again.began_at) == (ProfileState.RECORDING, first.began_at)
    assert ended.stopped == "stopped by ops"
    manifest = json.loads((Path(ended.folder) / "manifest.json").read_text())
    assert (manifest["id"], manifest["state"], manifest["stopped"]) == (ended.id, "done", "stopped by ops")
    assert stat.S_IMODE(Path(ended.folder).stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("script", "reason", "remedy"),
    [
        ("echo 'Error: Permission Denied (os error 1)'; exit 1", "ptrace is not permitted: Permission Denied", "SYS_PTRACE"),
        ("echo 'Error: Failed to find python version from target process'; exit 1", "it is no Python process", "perf"),
        ("echo 'py-spy> Sampling'; echo 'Error: token=hf_ABCDEFGHIJKLMNOP'; exit 1", "token=****", ""),
        ("exit 0", "did not say why", ""),
    ],
)
async def test_what_py_spy_refuses_is_said(tmp_path: Path, script: str, reason: str, remedy: str) -> None:
    py_spy = a_py_spy(tmp_path, script)
    profiler = Profiler("n1", {"e-1": instance()}, tmp_path / "profiles", lambda: py_spy)
    profiler.carry_out(order())
    left = next(one for one in (await done(profiler)).left_out if one.what == "stacks of instance e-1")
    assert reason in left.reason
    assert remedy in left.remedy


async def test_a_disk_that_is_nearly_full_takes_no_profile(tmp_path: Path) -> None:
    profiler = Profiler("n1", {"e-1": instance()}, tmp_path / "profiles", lambda: None, free=lambda _: LEAST_FREE - 1)
    with pytest.raises(DiskFull, match="GiB free"):
        profiler.carry_out(order())
    assert not (tmp_path / "profiles").exists()
    assert free_at(tmp_path / "not" / "yet") > 0


async def test_what_is_not_recorded_is_named_with_its_reason(tmp_path: Path) -> None:
    """py-spy missing, an engine asleep, one without torch's profiler; other endpoints' instances are not even named."""
    spec = SimpleNamespace(options={"threads": 1})
    vllm = SimpleNamespace(tenant="t", endpoint="e", model=SimpleNamespace(engine=EngineKind.VLLM))
    other = SimpleNamespace(tenant="u", endpoint="e", model=SimpleNamespace(engine=EngineKind.VLLM))
    instances = {
        "a": instance("a", InstanceState.ASLEEP),
        "b": instance("b", assignment=vllm, handle=SimpleNamespace(pid=os.getpid(), spec=spec)),
        "c": instance("c", assignment=other),
    }
    profiler = Profiler("n1", instances, tmp_path / "profiles", lambda: None)
    profiler.carry_out(order(node_too=True))
    ended = await done(profiler)
    told = {one.what: f"{one.reason}; {one.remedy}" for one in ended.left_out}
    assert told == {
        "stacks": "py-spy is not installed on the node; install it there: pip install 'standby[profile]'",
        "instance a": "it is asleep: only a ready engine works; ask it something first",
        "torch trace of b": "its engine was started without it; register the model with --option profile=true",
        "NVIDIA's profilers for b": "its engine computes on processors, nsys and ncu look at GPUs; ",
    }
    assert ended.files == ()


async def test_no_more_than_eight_instances_are_recorded(tmp_path: Path) -> None:
    """Instances count, not what is recorded of each: that may be nothing, or two things."""
    instances = {name: instance(name) for name in "abcdefghij"}
    profiler = Profiler("n1", instances, tmp_path / "profiles", lambda: None)
    profiler.carry_out(order())
    left = [one.what for one in (await done(profiler)).left_out if one.reason == "8 are enough"]
    assert left == ["instance i", "instance j"]


async def test_it_ends_by_itself_when_nobody_looks_or_the_engine_sleeps(tmp_path: Path) -> None:
    py_spy = a_py_spy(tmp_path, until_told(RECORDING))
    engine = instance()
    now = 0.0
    profiler = Profiler("n1", {"e-1": engine}, tmp_path / "profiles", lambda: py_spy, clock=lambda: now)
    profiler.carry_out(order())
    await until(lambda: bool(list(tmp_path.glob("profiles/*"))))
    now = 16.0
    await until(lambda: bool(list(tmp_path.glob("profiles/*/manifest.json"))))
    forgotten = await done(profiler)
    profiler.carry_out(order("ffffffffffffffff"))
    await until(lambda: len(list(tmp_path.glob("profiles/*"))) == 2)
    engine.life = cast("Any", SimpleNamespace(state=InstanceState.SUSPENDING))
    asleep = await done(profiler, "ffffffffffffffff")
    assert forgotten.stopped == "whoever asked for it has gone"
    assert asleep.stopped == "instance e-1 became suspending"


async def test_the_last_few_are_kept(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    (profiles / "not-ours").mkdir(parents=True)
    profiler = Profiler("n1", {}, profiles, lambda: None)
    names = [f"{number:016x}" for number in range(KEPT + 2)]
    for number, name in enumerate(names):
        profiler.carry_out(order(name))
        folder = Path((await done(profiler, name)).folder)
        os.utime(folder, (number, number))
    assert sorted(path.name for path in profiles.iterdir()) == [*names[-KEPT:], "not-ours"]
    with pytest.raises(NotFound, match="knows no profile"):
        profiler.carry_out(order(names[0], ProfileAction.LOOK))


@pytest.mark.parametrize("payload", [b"{}", b'{"id": "../../../etc", "action": "start"}', b"x"])
async def test_what_is_no_order_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInput, match="no order for a profile"):
        await Profiler("n1", {}, Path("nowhere")).answer("", payload)


def test_nvidias_command_lines_name_devices_as_they_are() -> None:
    """They are for people to run: quoted, on the same GPUs, and marked as never run."""
    nsys, ncu = command_lines(["python", "-m", "vllm", "--model", "/a b"], ("GPU-1", "MIG-7a1e"), 20, "/tmp/p")
    for line, program in ((nsys, "nsys profile --output /tmp/p/timeline"), (ncu, "ncu --export /tmp/p/kernels")):
        assert line.startswith("CUDA_VISIBLE_DEVICES=GPU-1,MIG-7a1e VLLM_WORKER_MULTIPROC_METHOD=spawn ")
        assert program in line
        assert line.endswith(" python -m vllm --model '/a b'")
    assert "--duration 20" in nsys
    assert "never been run" in WORDS


async def test_a_gpu_engines_command_lines_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "engine_command", lambda *_: ["engine", "--serve"])
    profiler = Profiler("n1", {"e-1": instance(devices=("GPU-1",))}, tmp_path / "profiles", lambda: None)
    profiler.carry_out(order())
    ended = await done(profiler)
    written = (Path(ended.folder) / "nvidia.sh").read_text()
    assert written == WORDS + "\n".join(ended.commands) + "\n"
    assert [file.name for file in ended.files] == ["nvidia.sh"]


def test_a_spec_of_vllm_is_started_again_from_what_it_was_told(tmp_path: Path) -> None:
    """A fork of a zygote has the zygote's command line: the model's arguments come from its spec."""
    (tmp_path / "config.json").write_text("{}")
    spec = EngineSpec(
        instance="i", epoch=1, kind=EngineKind.VLLM, model_dir=tmp_path, model_files=("m",), served_name="org/m", slots=2,
        run_dir=tmp_path,
    )  # fmt: skip
    command = engine_command(cast("Any", SimpleNamespace(pid=os.getpid(), spec=spec)), EngineKind.VLLM, tmp_path / "p.sock")
    assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert command[command.index("--uds") + 1] == str(tmp_path / "p.sock")
    assert command[command.index("--served-model-name") + 1] == "org/m"
