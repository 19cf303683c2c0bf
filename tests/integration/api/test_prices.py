"""Measured prices from afar: whose they are, what is shown of them, and what is said where nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path

from standby.domain.model import EngineKind
from standby.domain.node import Zygote
from standby.domain.prices import Footprint, Transition
from standby.warm_pool.price_book import PriceBook
from standby.warm_pool.price_key import PriceKey
from support.cluster import make_node
from support.command import standby
from support.control_api import ONE, TWO, Control, has_revision
from support.gguf_builder import gguf
from support.waiting import until

GONE = "f" * 64


async def a_model(control: Control, folder: Path, name: str, seed: int, who: str = "one", **fields: object) -> PriceKey:
    """Register a small model and return what its prices are kept under."""
    path = folder / f"{name}-{seed}.gguf"
    path.write_bytes(gguf(seed=seed))
    body = {"name": name, "source_uri": path.as_uri(), **fields}
    answer = await control.call(who, "POST", "/api/v1/models", body)
    assert answer.status_code == 201, answer.text
    return PriceKey(EngineKind.LLAMA_CPP, answer.json()["digest"], "0a1b2c")


async def a_node(control: Control, name: str, book: PriceBook, sizes: dict[str, Footprint] | None = None) -> None:
    """Say, as a node would, what it is and what it has measured."""
    zygotes = {EngineKind.VLLM: Zygote(state="ready")}
    await control.tables.nodes.put(name, make_node(name, zygotes=zygotes))
    revision = await control.tables.prices.put(name, book.announced(name, sizes or {}, 9.0))
    await until(lambda: has_revision(control.context.copies.prices.entries, name, revision))
    await until(lambda: name in control.context.copies.nodes.entries)


async def measured(control: Control, folder: Path) -> tuple[PriceKey, PriceKey, PriceKey]:
    """Two nodes: n1 knows a model of each tenant and one that is not registered any more, n2 only that of ``one``."""
    mine = await a_model(control, folder, "smol", 1)
    theirs = await a_model(control, folder, "theirs", 2, who="two")
    gone = PriceKey(EngineKind.VLLM, GONE, "0a1b2c")
    book = PriceBook().observe(mine, Transition.START, 2.0, 1.0).observe(mine, Transition.START, 4.0, 2.0)
    book = book.observe(mine, Transition.WAKE, 0.25, 3.0).observe(theirs, Transition.START, 7.0, 4.0)
    full = book.observe(gone, Transition.FORK, 6.5, 5.0).observe_hatch(EngineKind.VLLM, 12.0, 6.0)
    await a_node(control, "n1", full, {mine.text: Footprint(awake=200_000_000, asleep=9_000_000)})
    await a_node(control, "n2", PriceBook().observe(mine, Transition.FETCH, 1.5, 1.0))
    return mine, theirs, gone


async def test_a_tenant_sees_the_models_that_it_has_registered(control: Control, tmp_path: Path) -> None:
    mine, theirs, _gone = await measured(control, tmp_path)

    one = (await control.call("one", "GET", "/api/v1/prices")).json()
    two = (await control.call("two", "GET", "/api/v1/prices")).json()

    assert [(row["node"], row["models"], row["digest"]) for row in one["prices"]] == [
        ("n1", ["smol"], mine.digest),
        ("n2", ["smol"], mine.digest),
    ]
    start = one["prices"][0]["transitions"]["staged→ready"]
    assert (round(start["seconds"], 6), start["p95"], start["samples"], start["last"]) == (2.6, 4.0, 2, 4.0)
    assert one["prices"][0]["footprint"] == {
        "awake": 200_000_000,
        "asleep": 9_000_000,
        "peak": None,
        "device_awake": None,
        "device_asleep": None,
    }
    assert (one["prices"][0]["engine"], one["prices"][0]["options"], one["prices"][0]["has_zygote"]) == (
        "llama_cpp",
        "0a1b2c",
        False,
    )
    assert [(row["models"], row["digest"]) for row in two["prices"]] == [(["theirs"], theirs.digest)]
    assert (one["zygotes"], two["zygotes"]) == ([], []), "no model of theirs is served by an engine with a zygote"


async def test_an_administrator_sees_all_with_the_tenants_names(control: Control, tmp_path: Path) -> None:
    await measured(control, tmp_path)

    answer = (await control.call("admin", "GET", "/api/v1/prices")).json()

    assert [(row["node"], row["models"]) for row in answer["prices"]] == [
        ("n1", []),
        ("n1", [f"{ONE}/smol"]),
        ("n1", [f"{TWO}/theirs"]),
        ("n2", [f"{ONE}/smol"]),
    ]
    assert answer["prices"][0]["has_zygote"]
    ((node, engine, seconds),) = ((row["node"], row["engine"], row["hatch"]["seconds"]) for row in answer["zygotes"])
    assert (node, engine, seconds) == ("n1", "vllm", 12.0)


async def test_they_are_narrowed_by_node_and_model(control: Control, tmp_path: Path) -> None:
    mine, _theirs, _gone = await measured(control, tmp_path)

    async def rows(who: str, query: str) -> list[tuple[str, str]]:
        answer = await control.call(who, "GET", f"/api/v1/prices?{query}")
        assert answer.status_code == 200, answer.text
        return [(row["node"], row["digest"]) for row in answer.json()["prices"]]

    assert await rows("one", "node=n2") == [("n2", mine.digest)]
    assert await rows("admin", "model=smol&node=n1") == [("n1", mine.digest)]
    assert await rows("one", "node=nowhere") == []
    unknown = await control.call("admin", "GET", "/api/v1/prices?node=nowhere")
    others = await control.call("one", "GET", "/api/v1/prices?model=theirs")
    missing = await control.call("one", "GET", "/api/v1/prices?model=missin")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert others.status_code == missing.status_code == 404
    assert others.content.replace(b"theirs", b"missin") == missing.content


async def test_named_weights_are_their_own_versions(control: Control, tmp_path: Path) -> None:
    (tmp_path / "q4.gguf").write_bytes(gguf(seed=3))
    weights = {"q4": {"source_uri": (tmp_path / "q4.gguf").as_uri()}}
    whole = await a_model(control, tmp_path, "smol", 1, weights=weights)
    shown = (await control.call("one", "GET", "/api/v1/models/smol")).json()
    small = PriceKey(EngineKind.LLAMA_CPP, shown["weights"]["q4"]["digest"], "0a1b2c")
    book = PriceBook().observe(whole, Transition.START, 2.0, 1.0).observe(small, Transition.START, 1.0, 1.0)
    await a_node(control, "n1", book)

    answer = (await control.call("one", "GET", "/api/v1/prices?model=smol")).json()

    assert [(row["models"], row["digest"]) for row in answer["prices"]] == [
        (["smol"], whole.digest),
        (["smol (q4)"], small.digest),
    ]


async def test_the_command_shows_what_each_rung_costs(control: Control, tmp_path: Path) -> None:
    before = await standby(control, "prices")
    await measured(control, tmp_path)
    mine = await standby(control, "prices", "--node", "n1")
    everything = await standby(control, "prices", who="admin")
    asked = await standby(control, "prices", "--model", "smol", "--json")
    nobody = await standby(control, "prices", "--model", "missing")

    assert before.stdout == "nothing is measured yet: prices come with the first climb of a model\n"
    assert mine.exit_code == 0, mine.output
    steps, memory = (line for line in mine.stdout.splitlines() if line.startswith("n1 "))
    for words in (
        "smol",
        "llama_cpp",
        "2.6 s (p95 4.0 s, n 2)",
        "250 ms (p95 250 ms, n 1)",
        "no such rung",
        "not measured yet",
    ):
        assert words in steps
    for words in ("200.0 MB", "9.0 MB", "not measured yet"):
        assert words in memory
    assert f"{GONE[:12]} (not registered any more)" in everything.stdout
    assert "6.5 s (p95 6.5 s, n 1)" in everything.stdout
    zygote = everything.stdout.splitlines()[-1].split()
    assert zygote[:2] == ["n1", "vllm"]
    assert "12.0 s (p95 12.0 s, n 1)" in everything.stdout
    assert json.loads(asked.stdout) == (await control.call("one", "GET", "/api/v1/prices?model=smol")).json()
    assert (nobody.exit_code, "there is no model 'missing'" in nobody.stderr) == (4, True)
