"""The command line against a real control API: round trips, exit codes, waiting, streaming, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from standby.cli.main import app
from standby.domain.endpoint import Failure
from standby.domain.events import FetchProgress
from standby.domain.instance import InstanceState
from standby.domain.model import EngineKind
from standby.domain.node import Device, DeviceKind, EngineAbsence, Zygote
from support.cluster import GIB, MIB, make_node
from support.control_api import ONE, TWO, Control, control_api
from support.real_model import real_model_path
from support.s3_server import s3_server
from support.waiting import until


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STANDBY_URL", "STANDBY_API_KEY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STANDBY_STATE_DIR", str(tmp_path / "state"))


async def standby(control: Control, *words: str, who: str = "one", stdin: bytes | None = None) -> Any:
    """Run the command in a thread, as the server runs in this one."""
    arguments = ["--url", control.url, "--key", control.keys[who], *words]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, input=stdin)


async def test_a_model_and_an_endpoint_come_and_go(control: Control) -> None:
    uri = real_model_path().as_uri()

    registered = await standby(control, "models", "register", "smol", uri, "--option", "threads=2")
    created = await standby(control, "endpoints", "create", "chat", "--model", "smol", "--keep-ready", "5m", "--wait")
    listed = await standby(control, "endpoints", "list")
    shown = await standby(control, "endpoints", "show", "chat")
    refused = await standby(control, "models", "delete", "smol")
    deleted = await standby(control, "endpoints", "delete", "chat")

    assert registered.exit_code == 0, registered.output
    for words in ("architecture   llama", "options        threads=2", real_model_path().name, "1, "):
        assert words in registered.stdout
    assert created.stdout == ("endpoint chat is InService, cold: nothing runs; the next request starts it; served as 'chat'\n")
    assert "chat" in listed.stdout
    assert "\x1b" not in listed.stdout
    assert "keep_ready" in shown.stdout
    assert "5 m 0 s" in shown.stdout
    assert (refused.exit_code, deleted.exit_code) == (5, 0)
    assert "1 endpoints use it (chat)" in refused.stderr


async def test_nodes_show_devices_and_zygotes(control: Control) -> None:
    """A cordoned device says why, a zygote how it is, and how engines are kept apart is said in words."""
    node = make_node(
        devices=(
            Device(id="cpu-0", kind=DeviceKind.CPU, name="x86", memory_total=8 * GIB, cores=(0, 1), utilisation=0.25),
            Device(id="GPU-1", kind=DeviceKind.GPU, cordoned="Xid 79"),
        ),
        zygotes={
            EngineKind.VLLM: Zygote(state="ready", resident_bytes=500 * MIB, forks=3, hatch_s=9.5, version="vllm 0.32.0"),
            EngineKind.TENSORRT_LLM: Zygote(state="broken", failure="exit code 1"),
        },
        isolation="cgroup v2: memory.max and cpuset",
    )
    await control.tables.nodes.put(node.name, node)
    await until(lambda: node.name in control.context.copies.nodes.entries)

    shown = " ".join((await standby(control, "nodes", who="admin")).stdout.split())

    assert "n1 cpu-0 cpu x86 8.6 GB 0 bytes 0 bytes 25% 2 fit" in shown
    assert "n1 GPU-1 gpu 0 bytes 0 bytes 0 bytes cordoned: Xid 79" in shown
    assert "n1 vllm ready 524.3 MB 3 9.5 s vllm 0.32.0" in shown
    assert "n1 tensorrt_llm broken: exit code 1 0" in shown
    assert "n1 keeps engines apart by: cgroup v2: memory.max and cpuset" in shown


async def test_the_zygote_rung_is_configured_shown_and_waited_for(control: Control) -> None:
    await control.register()
    made = await standby(control, "endpoints", "create", "chat", "--model", "smol", "--keep-zygote", "2h")
    await control.place(InstanceState.ZYGOTE, engine=EngineKind.VLLM)
    waited = await standby(control, "endpoints", "wait", "chat", "--rung", "zygote", "--timeout", "2m")
    shown = await standby(control, "endpoints", "show", "chat")
    listed = await standby(control, "ps")

    assert (made.exit_code, waited.exit_code) == (0, 0), waited.output
    assert "keep_zygote" in shown.stdout
    assert "2 h 0 m" in shown.stdout
    assert "zygote: a pre-imported vllm process forks it" in listed.stdout


async def test_scaling_ahead_is_chosen_and_shown(control: Control) -> None:
    await control.register()
    for name, words in (("silent", ()), ("on", ("--scale-ahead",)), ("off", ("--no-scale-ahead",))):
        made = await standby(control, "endpoints", "create", name, "--model", "smol", "--max-instances", "3", *words)
        assert made.exit_code == 0, made.output
    told = {"silent": "where prices are snappy", "on": "yes", "off": "no"}
    for name, value in told.items():
        shown = await standby(control, "endpoints", "show", name)
        (line,) = [line for line in shown.stdout.splitlines() if "scale_ahead" in line]
        assert line.split("scale_ahead")[1].strip() == value


async def test_json_is_what_the_api_says(control: Control) -> None:
    await control.register()
    await control.create()

    for words, path in (
        (("models", "list"), "/api/v1/models"),
        (("models", "show", "smol"), "/api/v1/models/smol"),
        (("endpoints", "list"), "/api/v1/endpoints"),
        (("endpoints", "show", "chat"), "/api/v1/endpoints/chat?outlook=1"),
        (("ps",), "/api/v1/instances"),
        (("nodes",), "/api/v1/nodes"),
        (("prices",), "/api/v1/prices"),
        (("keys", "list"), "/api/v1/keys"),
        (("credentials", "list"), "/api/v1/credentials"),
        (("cache", "ls"), "/api/v1/cache"),
    ):
        answer = await standby(control, *words, "--json", who="admin")
        assert json.loads(answer.stdout) == (await control.call("admin", "GET", path)).json(), words


async def test_exit_codes_follow_the_errors(control: Control) -> None:
    control.keys["nobody"] = "sk-standby-00-11"
    cases = [
        (("models", "show", "nothing"), "one", 4, "there is no model 'nothing'"),
        (("endpoints", "create", "a_b", "--model", "m"), "one", 2, "endpoint name 'a_b' is not legal"),
        (("endpoints", "create", "e", "--model", "m", "--slots", "0"), "one", 2, "needs"),
        (("nodes",), "one", 6, "needs an administrator's key"),
        (("ps",), "nobody", 6, "the API key is missing or not valid"),
    ]
    for words, who, code, text in cases:
        answer = await standby(control, *words, who=who)
        assert answer.exit_code == code, (words, answer.output)
        assert text in answer.stderr or code == 2
        assert answer.stdout == ""


async def test_the_connection_file_is_found(control: Control, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "connection.json").write_text(json.dumps({"url": control.url, "api_key": control.keys["one"]}))

    answer = await asyncio.to_thread(CliRunner().invoke, app, ["status"])

    assert answer.exit_code == 0
    assert f"tenant        {ONE} (tenant)" in answer.stdout
    assert "bus           connected" in answer.stdout


async def test_a_missing_prefix_is_named(tmp_path: Path) -> None:
    """Field case B01: exit code 8 with bucket, prefix and "0 objects"; nothing is registered."""
    async with s3_server(tmp_path, "models") as s3, control_api(tmp_path, environment=s3.env()) as control:
        answer = await standby(
            control, "models", "register", "typo", "s3://models/smol-typo/", "--endpoint-url", s3.url, "--region", s3.region
        )
        listed = await standby(control, "models", "list")

    assert answer.exit_code == 8, answer.output
    assert "bucket 'models', prefix 'smol-typo/': 0 objects" in answer.stderr
    assert "no models" in listed.stdout


async def test_keys_are_printed_once_and_alone(control: Control) -> None:
    """The key is the only word on standard output, so that KEY=$(standby keys create …) works."""
    made = await standby(control, "keys", "create", "ci", "--tenant", TWO, who="admin")
    control.keys["ci"] = made.stdout.strip()
    status = json.loads((await standby(control, "status", "--json", who="ci")).stdout)
    listed = await standby(control, "keys", "list", who="admin")
    revoked = await standby(control, "keys", "revoke", control.keys["ci"].split("-")[2], who="admin")
    after = await standby(control, "ps", who="ci")

    assert status["tenant"] == TWO
    assert control.keys["ci"] not in listed.stdout
    assert "ci" in listed.stdout
    assert revoked.exit_code == 0
    assert after.exit_code == 6


async def test_an_administrator_acts_for_a_tenant(control: Control) -> None:
    await control.register("theirs", who="two")

    answer = await standby(control, "--tenant", TWO, "models", "list", who="admin")

    assert "theirs" in answer.stdout


async def test_wait_ends_when_the_rung_is_reached(control: Control) -> None:
    await control.register()
    await control.create()
    waiting = asyncio.create_task(standby(control, "endpoints", "wait", "chat", "--rung", "ready"))
    await control.place(InstanceState.STARTING)
    await control.place(InstanceState.READY)

    answer = await waiting

    assert answer.exit_code == 0
    assert answer.stdout.startswith("endpoint chat is InService, ready, 0 of 4 slots busy")


async def test_wait_ends_with_the_engines_own_words(control: Control) -> None:
    await control.register()
    await control.create()
    waiting = asyncio.create_task(standby(control, "endpoints", "wait", "chat", "--rung", "ready"))
    failure = Failure(reason="exit code 1", first_error="no such tensor", log_tail=("x", "y"), code="engine_start_failed")
    await control.fail("chat", failure)

    answer = await waiting

    assert answer.exit_code == 9
    assert answer.stderr.splitlines() == [
        "error: endpoint 'chat' failed: exit code 1",
        "first error: no such tensor",
        "the log ends:",
        "  x",
        "  y",
        "  try: mend the cause, then `standby endpoints retry chat`",
    ]
    retried = await standby(control, "endpoints", "retry", "chat")
    assert retried.stdout == "endpoint chat is InService again, generation 2\n"


async def test_wait_ends_at_its_limit(control: Control) -> None:
    await control.register()
    await control.create()

    answer = await standby(control, "endpoints", "wait", "chat", "--rung", "asleep", "--timeout", "50ms")

    assert answer.exit_code == 7
    assert "endpoint 'chat' is not asleep after 50 ms: InService, rung cold" in answer.stderr


async def test_wait_for_nothing_is_not_found(control: Control) -> None:
    answer = await standby(control, "endpoints", "wait", "nothing")

    assert answer.exit_code == 4


async def test_delete_waits_until_it_is_gone(control: Control) -> None:
    await control.register()
    await control.create()
    deleting = asyncio.create_task(standby(control, "endpoints", "delete", "chat", "--wait"))
    await until(lambda: control.context.copies.endpoints.entries[f"{ONE}.chat"].value.status == "Deleting")
    await control.tables.endpoints.delete(f"{ONE}.chat")

    answer = await deleting

    assert (answer.exit_code, answer.stdout) == (0, "endpoint chat is deleted\n")


class Engine:
    """Stands where the gateway's data route is: answers as an engine would, and says what it saw."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.began = asyncio.Event()
        self.left = asyncio.Event()

    def route(self) -> Route:
        return Route("/endpoints/{name}/invocations", self.invoke, methods=["POST"])

    async def invoke(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        name = request.path_params["name"]
        if name == "nothing":
            error = {"message": "there is no endpoint 'nothing'; look", "code": "endpoint_not_found", "remedy": "look"}
            return JSONResponse({"error": error}, 404)
        if name == "slow":
            return StreamingResponse(self._for_ever(), media_type="text/event-stream")
        if body.get("stream"):
            pieces = ["Par", "is", None] if name == "chat" else ["Par", {"error": {"message": "the engine died"}}]
            return StreamingResponse(self._pieces(pieces), media_type="text/event-stream")
        answer = {"choices": [{"message": {"content": "The capital of France is Paris."}}]}
        return JSONResponse(answer, headers={"x-standby-rung": "asleep", "x-other": "1"})

    async def _pieces(self, pieces: list[Any]) -> AsyncIterator[str]:
        for piece in pieces:
            chunk = piece if isinstance(piece, dict) else {"choices": [{"delta": {"content": piece}}]}
            yield "data: [DONE]\n\n" if piece is None else f"data: {json.dumps(chunk)}\n\n"

    async def _for_ever(self) -> AsyncIterator[str]:
        try:
            while True:
                yield 'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
                self.began.set()
                await asyncio.sleep(0.05)
        finally:
            self.left.set()


async def test_invoke_prints_the_text(tmp_path: Path) -> None:
    engine = Engine()
    async with control_api(tmp_path, more_routes=[engine.route()]) as control:
        plain = await standby(control, "invoke", "chat", "--prompt", "Name the capital of France.", "--max-tokens", "9")
        whole = await standby(control, "invoke", "chat", "--body", "-", "--json", stdin=b'{"prompt": "x"}')
        streamed = await standby(control, "invoke", "chat", "--prompt", "x", "--stream")
        chunks = await standby(control, "invoke", "chat", "--prompt", "x", "--stream", "--json")
        missing = await standby(control, "invoke", "nothing", "--prompt", "x")
        broken = await standby(control, "invoke", "broken", "--prompt", "x", "--stream")

    assert (plain.exit_code, plain.stdout, plain.stderr) == (0, "The capital of France is Paris.\n", "")
    question = {"role": "user", "content": "Name the capital of France."}
    assert engine.bodies[0] == {"messages": [question], "max_tokens": 9}
    assert engine.bodies[1] == {"prompt": "x"}
    raw = json.loads(whole.stdout)
    assert (raw["status"], raw["headers"]) == (200, {"x-standby-rung": "asleep"})
    assert raw["body"]["choices"][0]["message"]["content"].endswith("Paris.")
    assert streamed.stdout == "Paris\n"
    assert [chunk["choices"][0]["delta"]["content"] for chunk in json.loads(chunks.stdout)["chunks"]] == ["Par", "is"]
    assert (missing.exit_code, missing.stderr) == (4, "error: there is no endpoint 'nothing'\n  try: look\n")
    assert (broken.exit_code, broken.stdout) == (7, "Par\n")
    assert "the stream broke off: the engine died" in broken.stderr


async def test_ctrl_c_ends_the_request_everywhere(tmp_path: Path) -> None:
    engine = Engine()
    async with control_api(tmp_path, more_routes=[engine.route()]) as control:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "standby.cli.main", "--url", control.url, "invoke", "slow", "--prompt", "x", "--stream"),
            env={**os.environ, "STANDBY_API_KEY": control.keys["one"]},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            assert process.stdout is not None
            assert await process.stdout.readexactly(1) == b"x"
            process.send_signal(signal.SIGINT)
            _, stderr = await process.communicate()
            await engine.left.wait()

    assert process.returncode == 130
    assert stderr == b""


async def test_progress_is_fed_by_the_events(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the download's bar is drawn from the endpoint's events, on standard error only."""
    from standby.cli.progress import Climb

    seen: list[dict[str, Any]] = []
    feed = Climb.feed

    def spy(self: Climb, event: dict[str, Any]) -> None:
        seen.append(event)
        feed(self, event)

    monkeypatch.setattr(Climb, "feed", spy)
    await control.register()
    await control.create()
    waiting = asyncio.create_task(standby(control, "endpoints", "wait", "chat", "--rung", "ready"))
    before = len(control.context.bus._subscriptions)
    await until(lambda: len(control.context.bus._subscriptions) > before)
    progress = {"digest": "d" * 64, "done_bytes": 5, "total_bytes": 9}
    await control.context.events.publish(
        FetchProgress(id="1", at=1.0, source="node/n1", tenant=ONE, endpoint="chat", **progress)
    )
    await until(lambda: any(event["kind"] == "fetch" for event in seen))
    await control.place(InstanceState.READY)

    answer = await waiting

    assert answer.exit_code == 0
    assert [event["done_bytes"] for event in seen if event["kind"] == "fetch"] == [5]


async def test_doctor_says_what_it_finds(control: Control) -> None:
    answer = await standby(control, "doctor", "--json")

    report = json.loads(answer.stdout)
    findings = {item["name"]: item for item in report["findings"]}
    assert report["ok"] is (answer.exit_code == 0)
    assert findings["Python"]["verdict"] == findings["nats-server"]["verdict"] == "ok"
    assert findings["gateway"]["detail"].startswith(control.url)
    assert all(item["remedy"] for item in report["findings"] if item["verdict"] != "ok")


async def test_doctor_tells_the_engines_of_every_node(control: Control) -> None:
    """What runs there with its version, what does not with the reason and the remedy; absence is no fault of the machine."""
    node = make_node(
        engines=(EngineKind.LLAMA_CPP,),
        engine_versions={EngineKind.LLAMA_CPP: "xllamacpp 1"},
        absent_engines={EngineKind.VLLM: EngineAbsence(reason="vLLM is not installed", remedy="set STANDBY_VLLM_PYTHON")},
    )
    await control.tables.nodes.put(node.name, node)
    await until(lambda: node.name in control.context.copies.nodes.entries)

    report = json.loads((await standby(control, "doctor", "--json", who="admin")).stdout)
    tenants = json.loads((await standby(control, "doctor", "--json")).stdout)

    findings = {item["name"]: item for item in report["findings"]}
    able, absent = findings["llama_cpp on n1"], findings["vllm on n1"]
    assert (able["verdict"], able["detail"]) == ("ok", "xllamacpp 1, computes on cpu")
    assert (absent["verdict"], absent["detail"]) == ("absent", "vLLM is not installed")
    assert absent["remedy"] == "set STANDBY_VLLM_PYTHON"
    hidden = {item["name"]: item for item in tenants["findings"]}
    assert not [name for name in hidden if name.endswith(" on n1")]
    assert hidden["engines of the nodes"]["verdict"] == "absent"
    assert "needs an administrator's key" in hidden["engines of the nodes"]["detail"]
    assert hidden["engines of the nodes"]["remedy"]
