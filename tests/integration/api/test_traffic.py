"""Traffic policies, several engines and keys' priorities through the API and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from standby.domain.endpoint import Failure
from standby.domain.instance import InstanceState
from support.command import standby
from support.control_api import ONE, Control
from support.gguf_builder import gguf
from support.safetensors_builder import model as safetensors_model


def put(folder: Path, files: dict[str, bytes]) -> str:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return f"{folder.as_uri()}/"


@pytest.fixture
async def registered(control: Control, tmp_path: Path) -> Control:
    """A model with GGUF weights and safetensors of the same."""
    body = {
        "name": "smol",
        "source_uri": put(tmp_path / "gguf", {"model.gguf": gguf(rows=8)}),
        "weights": {"full": {"source_uri": put(tmp_path / "st", safetensors_model(max_position_embeddings=2048))}},
    }
    answer = await control.call("one", "POST", "/api/v1/models", body)
    assert answer.status_code == 201, answer.text
    return control


async def create(control: Control, **more: Any) -> Any:
    return await control.call("one", "POST", "/api/v1/endpoints", {"name": "chat", "model": "smol", **more})


BACKENDS = [{"engine": "llama_cpp", "slots": 2}, {"engine": "vllm", "weights": "full", "min_ready": 1, "memory_mb": 512}]


async def test_a_policy_and_several_engines_are_stored_and_shown(registered: Control) -> None:
    traffic = {"tier": "critical", "latency_target": "500ms", "priority": {"default": "high", "weights": {"batch": 0.1}}}
    answer = await create(registered, backends=BACKENDS, traffic=traffic)
    assert answer.status_code == 201, answer.text

    shown = answer.json()
    assert (shown["traffic"]["tier"], shown["traffic"]["latency_target"]) == ("critical", 0.5)
    assert shown["traffic"]["priority"]["weights"] == {"urgent": 5.0, "high": 3.0, "normal": 1.0, "batch": 0.1}
    assert [(one["engine"], one["weights"]) for one in shown["variants"][0]["backends"]] == [
        ("llama_cpp", None),
        ("vllm", "full"),
    ]
    config = await registered.tables.endpoint_configs.get(f"{ONE}.chat-1")
    assert config is not None
    assert config.value.traffic.latency_target == 0.5
    assert [one.label for one in config.value.variants[0].backends] == ["llama_cpp", "vllm"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"traffic": {"tier": "gold"}}, 400, ("traffic.tier", "'gold'", "'critical', 'standard' or 'best-effort'")),
        ({"traffic": {"latency_target": "soon"}}, 400, ("traffic.latency_target", "'soon'")),
        ({"traffic": {"queue": "adaptive"}}, 400, ("traffic.queue", "latency_target", "'static'")),
        ({"traffic": {"priority": {"default": "urgent", "highest": "high"}}}, 400, ("urgent", "above the highest one, high")),
        ({"backends": [*BACKENDS, BACKENDS[0]]}, 400, ("llama_cpp given more than once", "'name'")),
        ({"backends": BACKENDS, "weights": "full"}, 400, ("weights", "'full'", "inside each backend")),
        ({"backends": [{"engine": "vllm", "min_ready": 2, "max_instances": 1}]}, 400, ("min_ready 2", "max_instances 1")),
        ({"backends": [{"engine": "vllm", "slots": 0}]}, 400, ("backends.0.slots", "greater than or equal to 1", "'0'")),
        ({"backends": [{"engine": "vllm", "name": "a/b"}]}, 400, ("backend name 'a/b'",)),
        ({"backends": [{"engine": "vllm", "weights": "q9"}]}, 400, ("backend 'vllm'", "no weights 'q9'")),
        ({"backends": [{"engine": "vllm"}]}, 422, ("backend 'vllm': vllm cannot serve model 'smol'",)),
        ({"backends": [{"engine": "llama_cpp", "weights": "full"}]}, 422, ("llama_cpp cannot serve weights 'full'",)),
    ],
)
async def test_what_cannot_be_is_refused_by_field_value_and_limit(
    registered: Control, body: dict[str, Any], status: int, words: tuple[str, ...]
) -> None:
    answer = await create(registered, **body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert [word for word in words if word not in error["message"]] == [], error
    assert error["remedy"]
    assert (await registered.call("one", "GET", "/api/v1/endpoints")).json() == {"endpoints": []}


async def test_the_remedy_names_the_weights_that_an_engine_can_serve(registered: Control) -> None:
    answer = await create(registered, backends=[{"engine": "vllm"}])
    assert answer.json()["error"]["remedy"] == "choose other weights for it: full"
    answer = await create(registered, backends=[{"engine": "llama_cpp", "weights": "full"}])
    assert "the registered ones" in answer.json()["error"]["remedy"]


async def test_quotas_count_every_engine_of_a_variant(registered: Control) -> None:
    made = await registered.call("admin", "POST", "/api/v1/tenants", {"id": ONE, "quotas": {"memory_mb": 1000}})
    assert made.status_code == 201, made.text
    several = [{"engine": "llama_cpp", "memory_mb": 600}, {"engine": "vllm", "weights": "full", "memory_mb": 600}]
    answer = await create(registered, backends=several)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "quota_exceeded"), answer.text
    assert (await create(registered, backends=several[:1])).status_code == 201


async def test_the_command_line_declares_it_and_shows_it_in_words(registered: Control, tmp_path: Path) -> None:
    file = tmp_path / "traffic.json"
    file.write_text(json.dumps({"tier": "best-effort", "priority": {"max_waits": {"batch": "10m"}}}))

    async def run(*words: str) -> tuple[int, str, str]:
        done = await standby(registered, *words)
        return done.exit_code, done.stdout, done.stderr

    code, _, err = await run(
        "endpoints", "create", "chat", "--model", "smol", "--traffic", str(file), "--tier", "critical",
        "--latency-target", "500ms", "--priority", "high", "--max-priority", "urgent", "--queue", "adaptive",
        "--hybrid", "thresholds", "--backend", "engine=llama_cpp,slots=2", "--backend", "engine=vllm,weights=full,min-ready=1",
    )  # fmt: skip
    assert code == 0, err
    await registered.place(InstanceState.READY, backend="vllm", variant="AllTraffic")
    failure = Failure(reason="engine ended", variant="AllTraffic", backend="llama_cpp")
    await registered.fail("chat", failure)
    code, out, err = await run("endpoints", "show", "chat")
    assert code == 0, err
    for words in (
        "critical: one more try elsewhere before the first byte",
        "first token within 500 ms for all but 1.0% of requests",
        "adaptive: as many wait as still meet the latency target, at least 4",
        "high unless asked for another, urgent at most",
        "weight 0.5, goes first after 1 m 0 s, refused after 10 m 0 s",
        "60% of at least 20 requests within 1 m 0 s failed",
        "thresholds: from 2048 prompt tokens on TensorRT-LLM",
        "llama_cpp (preferred)",
        "1 ready",
        "backend llama_cpp failed: engine ended",
    ):
        assert words in out, out
    code, _, err = await run("endpoints", "create", "x", "--model", "smol", "--backend", "engine=vllm,slot=3")
    assert code == 2
    assert "there is no field 'slot'" in err


async def test_a_keys_priority_is_stored_shown_and_handed_on_at_most(registered: Control) -> None:
    made = await registered.call("admin", "POST", "/api/v1/keys", {"name": "night", "tenant": ONE, "priority": "batch"})
    assert made.json()["priority"] == "batch"
    registered.keys["night"] = made.json()["api_key"]
    listed = (await registered.call("admin", "GET", "/api/v1/keys")).json()["keys"]
    assert {one["name"]: one["priority"] for one in listed}["night"] == "batch"

    pair = await registered.call("night", "POST", "/api/v1/access-keys", {"name": "ci"})
    assert pair.json()["priority"] == "batch", "what it is bound to itself binds what it makes"
    more = await registered.call("night", "POST", "/api/v1/access-keys", {"name": "ci", "priority": "high"})
    assert (more.status_code, "more urgent than this key's own, batch" in more.text) == (403, True)
    free = await registered.call("one", "POST", "/api/v1/access-keys", {"name": "ci", "priority": "high"})
    assert free.json()["priority"] == "high"
    wrong = await registered.call("one", "POST", "/api/v1/access-keys", {"name": "ci", "priority": "now"})
    assert (wrong.status_code, "'urgent', 'high', 'normal' or 'batch'" in wrong.text) == (400, True)

    resealed = await registered.call("admin", "POST", "/api/v1/access-keys/reseal")
    assert resealed.status_code == 200, resealed.text
    path = f"/api/v1/access-keys/{free.json()['access_key_id']}"
    assert (await registered.call("one", "GET", path)).json()["priority"] == "high"
    ended = await registered.call("one", "PATCH", path, {"expires_in_s": 60})
    assert ended.json()["priority"] == "high"
