"""The command line as its user has it: processes, tables, JSON, exit codes, against ``standby up`` and the real model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from standby.warm_pool.run_dir import run_dir
from support.gguf_builder import gguf
from support.real_model import real_model_path
from support.s3_server import S3Server
from support.user import DEADLINE_S, PARIS, QUESTION, Shell, Up
from support.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shell(running: Up) -> AsyncIterator[Shell]:
    """A shell in a deployment that serves the real model as ``smol``."""
    await running.serve("smol", "s3://models/smollm2/", keep_ready="10m")
    yield running.shell


async def test_a_model_comes_and_goes(shell: Shell) -> None:
    """Registered from one object, listed, shown, deleted; each for people and for programs."""
    uri = "s3://models/smollm2/model.gguf"
    registered = await shell.standby("models", "register", "one", uri, "--option", "threads=1")
    again = await shell.standby("models", "register", "one", uri, "--option", "threads=1", "--json")
    listed = await shell.standby("models", "list")
    listed_json = await shell.standby("models", "list", "--json")
    shown = await shell.standby("models", "show", "one")
    deleted = await shell.standby("models", "delete", "one", "--json")
    gone = await shell.standby("models", "show", "one", code=4)

    for words in ("architecture   llama", "parameters     134,515,008", "chat template  yes", "options        threads=1"):
        assert words in registered.out
    assert again.json()["bytes"] == real_model_path().stat().st_size
    assert listed.out.splitlines()[0].split() == ["NAME", "FORMAT", "ENGINE", "SIZE", "OBJECTS", "VERSION", "SOURCE"]
    assert [item["name"] for item in listed_json.json()["models"]] == ["one", "smol"]
    assert shown.out == registered.out
    assert deleted.json() == {"deleted": "one"}
    assert gone.err.startswith("error: there is no model 'one'")


async def test_a_missing_prefix_is_named(shell: Shell) -> None:
    """Field case B01."""
    ran = await shell.standby("models", "register", "typo", "s3://models/smolm2/", code=8)
    as_json = await shell.standby("models", "register", "typo", "s3://models/smolm2/", "--json", code=8)
    bucket = await shell.standby("models", "register", "typo", "s3://modelz/smollm2/", code=8)

    assert "bucket 'models', prefix 'smolm2/': 0 objects" in ran.err
    assert ran.out == ""
    assert json.loads(as_json.err)["error"]["code"] == "empty_source"
    assert "modelz" in bucket.err


async def test_a_neighbours_prefix_is_another_model(shell: Shell, s3: S3Server) -> None:
    """Of ``m7`` and ``m7-instruct`` each is exactly its own objects, and half a name is none."""
    await s3.upload("models", "m7/plain.gguf", gguf(rows=4, seed=1))
    await s3.upload("models", "m7-instruct/tuned.gguf", gguf(rows=4, seed=2))

    one = (await shell.standby("models", "register", "m7", "s3://models/m7", "--json")).json()
    two = (await shell.standby("models", "register", "m7-instruct", "s3://models/m7-instruct/", "--json")).json()
    none = await shell.standby("models", "register", "m", "s3://models/m", code=8)

    assert [item["path"] for item in one["objects"]] == ["plain.gguf"]
    assert [item["path"] for item in two["objects"]] == ["tuned.gguf"]
    assert "0 objects" in none.err


async def test_an_engine_option_that_does_not_exist_is_refused(shell: Shell) -> None:
    ran = await shell.standby("models", "register", "m", "s3://models/smollm2/", "--option", "thread=1", code=2)

    assert "'thread'" in ran.err
    assert "threads" in ran.err
    await shell.standby("models", "show", "m", code=4)


async def test_an_engine_option_reaches_the_engine(shell: Shell, running: Up) -> None:
    await shell.standby(
        "models", "register", "thin", "s3://models/smollm2/", "--option", "threads=1", "--option", "context=512"
    )
    await shell.standby("endpoints", "create", "thin", "--model", "thin")
    await running.ask("thin")
    (specification,) = run_dir(running.state / "node").glob("thin-*/spec.json")
    told = json.loads(specification.read_text())
    await shell.standby("endpoints", "delete", "thin", "--wait")

    assert (told["threads"], told["context"]) == (1, 512)


async def test_an_endpoint_is_asked_shown_and_deleted(shell: Shell) -> None:
    created = await shell.standby("endpoints", "create", "chat", "--model", "smol", "--keep-ready", "1s", "--keep-asleep", "1h")
    asked = await shell.standby("invoke", "chat", "--prompt", QUESTION, "--temperature", "0")
    streamed = await shell.standby("invoke", "chat", "-p", QUESTION, "--stream", "--temperature", "0")
    raw = (await shell.standby("invoke", "chat", "--body", "-", "--json", stdin=b'{"prompt": "1 2 3", "max_tokens": 2}')).json()
    waited = await shell.standby("endpoints", "wait", "chat", "--rung", "asleep", "--timeout", "50s")
    asleep = await shell.standby("endpoints", "show", "chat")
    woken = (await shell.standby("invoke", "chat", "-p", QUESTION, "--stream", "--temperature", "0", "--json")).json()
    listed = await shell.standby("endpoints", "list")
    shown = (await shell.standby("endpoints", "show", "chat", "--json")).json()
    deleted = await shell.standby("endpoints", "delete", "chat", "--wait")
    gone = await shell.standby("invoke", "chat", "-p", QUESTION, code=4)

    assert created.out == "endpoint chat is InService, cold: nothing runs; the next request starts it; served as 'chat'\n"
    assert (asked.out, streamed.out) == (f"{PARIS}\n", f"{PARIS}\n")
    assert (asked.err, streamed.err) == ("", "")
    assert raw["status"] == 200
    # A second may pass before a process has started; on a crowded machine a wake may end in a start.
    assert raw["headers"]["x-standby-rung"] in {"ready", "asleep", "staged"}
    assert raw["body"]["usage"]["completion_tokens"] == 2
    assert waited.out.startswith("endpoint chat is InService, asleep: process kept, ")
    assert "keep_ready" in asleep.out
    assert "MiB of memory still held" in asleep.out
    assert woken["headers"]["x-standby-rung"] == "asleep"
    assert "loaded=" in woken["headers"]["x-standby-phases-ms"]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in woken["chunks"]) == PARIS
    assert {"chat", "InService"} <= set(listed.out.split())
    assert shown["variants"][0]["policy"]["keep_ready"] == 1.0
    assert deleted.out == "endpoint chat is deleted\n"
    assert gone.err.startswith("error: Endpoint chat of account 000000000000 not found.")


async def test_waiting_has_a_limit(shell: Shell) -> None:
    await shell.standby("endpoints", "create", "still", "--model", "smol")

    ran = await shell.standby("endpoints", "wait", "still", "--rung", "ready", "--timeout", "100ms", code=7)

    assert "endpoint 'still' is not ready after 100 ms" in ran.err
    await shell.standby("endpoints", "delete", "still")


async def test_create_may_wait_until_it_serves(shell: Shell) -> None:
    """With one instance that never leaves ready, ``--wait`` returns when that instance answers."""
    words = ("endpoints", "create", "kept", "--model", "smol", "--min-ready", "1", "--wait", "--json")

    created = (await shell.standby(*words)).json()

    assert [item["state"] for item in created["instances"]] == ["ready"]
    assert created["instances"][0]["activation"]["phases_ms"]["loaded"] > 0
    await shell.standby("endpoints", "delete", "kept", "--wait")


async def test_what_runs_is_shown(shell: Shell, running: Up) -> None:
    await running.ask("smol")

    async def heard() -> bool:
        """The node says what it holds with its next heart beat."""
        (node,) = (await running.call("GET", "/nodes"))["nodes"]
        return bool(node["cache_bytes"] >= real_model_path().stat().st_size)

    await until(heard, "the node's record has it", DEADLINE_S)
    ps = await shell.standby("ps")
    ps_json = (await shell.standby("ps", "--endpoint", "smol", "--json")).json()
    nodes = await shell.standby("nodes")
    nodes_json = (await shell.standby("nodes", "--json")).json()
    status = await shell.standby("status")
    status_json = (await shell.standby("--json", "status")).json()

    assert "smol" in ps.out
    assert "slots busy" in ps.out
    assert [item["state"] for item in ps_json["instances"]] == ["ready"]
    assert "llama_cpp" in nodes.out
    assert nodes_json["nodes"][0]["cache_bytes"] >= real_model_path().stat().st_size
    assert "bus           connected" in status.out
    assert status_json["nodes"] == 1
    assert len(status_json["leader"]) == 1


async def test_a_key_is_made_once_and_refused_at_once_when_revoked(shell: Shell, running: Up) -> None:
    made = await shell.standby("keys", "create", "ci")
    key = made.out.strip()
    headers = {"authorization": f"Bearer {key}"}
    before = await running.api.get("/v1/models", headers=headers)
    listed = await shell.standby("keys", "list")
    identity = key.split("-")[2]
    admin = await shell.standby("keys", "list", code=6, STANDBY_API_KEY=key)
    revoked = await shell.standby("keys", "revoke", identity, "--json")

    async def refused() -> bool:
        body = {"model": "smol", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        return (await running.api.post("/v1/chat/completions", headers=headers, json=body)).status_code == 401

    await until(refused, "the revoked key is refused")
    assert before.status_code == 200
    assert key not in listed.out
    assert "ci" in listed.out
    assert "needs an administrator's key" in admin.err
    assert revoked.json()["revoked_at"] is not None
    await shell.standby("ps", code=6, STANDBY_API_KEY=key)


async def test_a_tenant_registers_from_the_platforms_store_only(shell: Shell) -> None:
    """``file://`` would read the nodes' own disks, another store's address would be called from inside."""
    key = (await shell.standby("keys", "create", "t", "--tenant", "123456789012")).out.strip()

    file = await shell.standby("models", "register", "m", real_model_path().as_uri(), code=6, STANDBY_API_KEY=key)
    other = await shell.standby(
        *("models", "register", "m", "s3://models/x/", "--endpoint-url", "http://127.0.0.1:1"), code=6, STANDBY_API_KEY=key
    )
    own = await shell.standby("models", "register", "m", "s3://models/smollm2/", STANDBY_API_KEY=key)
    listed = await shell.standby("models", "list", "--json", STANDBY_API_KEY=key)
    foreign = await shell.standby("endpoints", "show", "smol", code=4, STANDBY_API_KEY=key)

    assert "needs an administrator's key" in file.err
    assert "needs an administrator's key" in other.err
    assert "smollm2" in own.out
    assert [item["name"] for item in listed.json()["models"]] == ["m"]
    assert "there is no endpoint 'smol'" in foreign.err


async def test_wrong_input_has_its_exit_code(shell: Shell) -> None:
    for words, code, text in (
        (("endpoints", "create", "a_b", "--model", "smol"), 2, "is not legal"),
        (("endpoints", "create", "smol", "--model", "smol"), 5, "exists already"),
        (("endpoints", "create", "x", "--model", "nothing"), 4, "there is no model 'nothing'"),
        (("endpoints", "create", "x", "--model", "smol", "--keep-ready", "soon"), 2, "soon"),
        (("models", "delete", "smol"), 5, "1 endpoints use it (smol)"),
        (("models", "register", "x", "ftp://models/x"), 2, "ftp"),
        (("keys", "revoke", "nothing"), 4, "there is no key 'nothing'"),
        (("invoke", "smol"), 2, "exactly one of --prompt and --body"),
        (("invoke", "smol", "--body", "/nowhere"), 2, "cannot be read"),
        (("--url", "http://127.0.0.1:1", "ps"), 7, "no gateway answers"),
    ):
        ran = await shell.standby(*words, code=code)
        assert text in ran.err, (words, ran)


async def test_doctor_finds_this_machine_fit(shell: Shell, running: Up) -> None:
    people = await shell.standby("doctor")
    report = (await shell.standby("doctor", "--json")).json()

    assert "nats-server" in people.out
    assert report["ok"] is True
    assert {item["name"]: item["detail"] for item in report["findings"]}["gateway"].startswith(running.url)


async def test_doctor_says_how_to_get_what_lacks(shell: Shell, tmp_path: Path) -> None:
    """A state folder that cannot be written and a deployment that does not run: exit code 3, each with a remedy."""
    blocked = tmp_path / "file"
    blocked.write_text("")

    ran = await shell.standby("doctor", "--json", code=3, STANDBY_STATE_DIR=str(blocked / "x"))

    lacking = {item["name"]: item for item in ran.json()["findings"] if item["verdict"] != "ok"}
    assert lacking["state folder"]["verdict"] == "missing"
    assert lacking["gateway"]["verdict"] == "absent"
    assert all(item["remedy"] for item in lacking.values())
    assert "this machine lacks: state folder" in ran.err
