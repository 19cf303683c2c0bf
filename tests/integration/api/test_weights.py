"""Other weights of one registration, and engines' verdicts: what is stored, shown and refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.command import standby
from support.control_api import ONE, Control
from support.gguf_builder import KEYS, gguf
from support.safetensors_builder import model as safetensors_model

Bytes = Mapping[str, bytes]


def put(folder: Path, files: Bytes) -> str:
    """Write a model's files and return their place."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return f"{folder.as_uri()}/"


def a_twin(**changes: Any) -> dict[str, bytes]:
    """Safetensors of the model that the GGUF builder makes."""
    return safetensors_model(max_position_embeddings=2048, **changes)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    return {
        "full": put(tmp_path / "full", {"model.gguf": gguf(rows=8)}),
        "q4": put(tmp_path / "q4", {"model.gguf": gguf(rows=4)}),
        "st": put(tmp_path / "st", a_twin()),
        "long": put(tmp_path / "long", {"model.gguf": gguf({**KEYS, "llama.context_length": 4096})}),
        "mute": put(tmp_path / "mute", {name: content for name, content in a_twin().items() if "tokenizer" not in name}),
    }


async def register(control: Control, place: str, name: str = "m", **more: Any) -> Any:
    return await control.call("one", "POST", "/api/v1/models", {"name": name, "source_uri": place, **more})


def weights(places: Mapping[str, str], *names: str) -> dict[str, Any]:
    return {name: {"source_uri": places[name]} for name in names}


async def test_weights_are_registered_shown_and_chosen(control: Control, places: dict[str, str]) -> None:
    registered = await register(control, places["full"], weights=weights(places, "q4", "st"))
    shown = (await control.call("one", "GET", "/api/v1/models/m")).json()
    created = await control.call("one", "POST", "/api/v1/endpoints", {"name": "e", "model": "m", "weights": "q4"})

    assert registered.status_code == 201, registered.text
    assert shown == registered.json()
    assert list(shown["weights"]) == ["q4", "st"]
    q4, twin = shown["weights"]["q4"], shown["weights"]["st"]
    assert (q4["source_uri"], q4["engine"], twin["engine"]) == (places["q4"], "llama_cpp", "vllm")
    assert q4["digest"] != shown["digest"]
    assert {item["path"] for item in twin["objects"]} >= {"config.json", "model.safetensors"}
    assert created.status_code == 201, created.text
    assert created.json()["variants"][0]["weights"] == "q4"
    config = await control.tables.endpoint_configs.get(f"{ONE}.e-1")
    assert config is not None
    assert config.value.variants[0].weights == "q4"


async def test_unknown_weights_are_refused_with_the_known_ones(control: Control, places: dict[str, str]) -> None:
    await register(control, places["full"], weights=weights(places, "q4"))
    await register(control, places["full"], "plain")

    unknown = await control.call("one", "POST", "/api/v1/endpoints", {"name": "e", "model": "m", "weights": "q8"})
    none = await control.call("one", "POST", "/api/v1/endpoints", {"name": "e", "model": "plain", "weights": "q4"})
    variants = [{"model": "m"}]
    stray = await control.call("one", "POST", "/api/v1/endpoints", {"name": "e", "variants": variants, "weights": "q4"})

    assert (unknown.status_code, unknown.json()["error"]["remedy"]) == (400, "known are: q4")
    assert (none.status_code, none.json()["error"]["remedy"]) == (400, "known are: none, it was registered without others")
    assert stray.status_code == 400
    assert await control.tables.endpoints.list() == {}


async def test_weights_of_another_model_are_refused(control: Control, places: dict[str, str]) -> None:
    refused = await register(control, places["full"], weights=weights(places, "q4", "long"))

    assert refused.status_code == 400
    assert "weights 'long'" in refused.json()["error"]["message"]
    assert "the context length is 4096 instead of 2048 tokens" in refused.json()["error"]["message"]
    assert await control.tables.models.list() == {}


async def test_weights_are_added_in_use_and_changed_only_when_free(control: Control, places: dict[str, str]) -> None:
    first = (await register(control, places["full"], weights=weights(places, "q4"))).json()
    await control.call("one", "POST", "/api/v1/endpoints", {"name": "e", "model": "m", "weights": "q4"})

    again = await register(control, places["full"], weights=weights(places, "q4"))
    added = await register(control, places["full"], weights=weights(places, "q4", "st"))
    fewer = await register(control, places["full"], replace=True)
    other = await register(control, places["full"], weights={"q4": {"source_uri": places["st"]}}, replace=True)

    assert (again.status_code, again.json()) == (200, first)
    assert (added.status_code, list(added.json()["weights"])) == (200, ["q4", "st"])
    assert (fewer.status_code, other.status_code) == (409, 409)
    assert "1 endpoints use it (e)" in other.json()["error"]["message"]


async def test_what_no_engine_can_serve_is_registered_and_gets_no_endpoint(control: Control, places: dict[str, str]) -> None:
    registered = await register(control, places["mute"])
    created = await control.call("one", "POST", "/api/v1/endpoints", {"name": "e", "model": "m"})
    asked = await register(control, places["mute"], "n", engine="vllm")

    assert (registered.status_code, registered.json()["engine"]) == (201, None)
    verdicts = {item["engine"]: (item["serves"], item["reason"]) for item in registered.json()["engines"]}
    assert verdicts.keys() == {"llama_cpp", "vllm", "tensorrt_llm"}
    assert all(not serves and reason for serves, reason in verdicts.values())
    assert (created.status_code, created.json()["error"]["code"]) == (422, "unsupported_artifact")
    for engine, (_, reason) in verdicts.items():
        assert f"{engine}: {reason}" in created.json()["error"]["message"]
    assert asked.status_code == 400
    assert verdicts["vllm"][1] in asked.json()["error"]["message"]


async def test_the_command_shows_the_whole_manifest(control: Control, places: dict[str, str]) -> None:
    words = ("models", "register", "m", places["full"], "--variant", f"q4={places['q4']}", "--variant", f"st={places['st']}")

    registered = await standby(control, *words)
    shown = await standby(control, "models", "show", "m")
    created = await standby(control, "endpoints", "create", "e", "--model", "m", "--weights", "q4")
    described = await standby(control, "endpoints", "show", "e")
    mute = await standby(control, "models", "register", "mute", places["mute"])
    refused = await standby(control, "endpoints", "create", "f", "--model", "mute")
    wrong = await standby(control, "models", "register", "w", places["full"], "--variant", "q4")

    assert registered.exit_code == 0, registered.output
    assert shown.stdout == registered.stdout
    for said in (
        "format         gguf",
        "context        2048 tokens",
        "tokenizer      yes",
        "weights q4",
        "weights st",
        "  engine         vllm",
        "the weights are gguf: vLLM reads safetensors",
        "config.json",
    ):
        assert said in shown.stdout, said
    assert created.exit_code == 0, created.output
    assert "model m with weights q4, weight 1" in described.stdout
    assert "engine         none can serve it: see below" in mute.stdout
    assert "there is no tokenizer" in mute.stdout
    assert refused.exit_code == 8
    assert "no engine can serve model 'mute'" in refused.stderr
    assert (wrong.exit_code, "not of the form name=uri" in wrong.stderr) == (2, True)
