"""A profile on several nodes: what becomes of it when one of them dies, and what is copied from where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from standby.cli.client import Client
from standby.cli.profile import MOST_SILENT, collect, until_done
from standby.domain.errors import NotFound, StandbyError, Unavailable

Told = Callable[[int], dict[str, Any] | StandbyError]


def part(node: str, state: str = "recording", **changes: Any) -> dict[str, Any]:
    return {"node": node, "id": "0123456789ab", "state": state, "recorded_s": 1.0, "seconds": 5, "folder": "/n", **changes}


class Nodes:
    """A gateway's client: each node answers its looks as told, by their number from 1."""

    def __init__(self, **told: Told) -> None:
        self.told = told
        self.looks = dict.fromkeys(told, 0)

    async def call(self, method: str, path: str) -> Any:
        node = path.split("/")[4]
        assert (method, path) == ("GET", f"/api/v1/nodes/{node}/profiles/0123456789ab")
        self.looks[node] += 1
        found = self.told[node](self.looks[node])
        if isinstance(found, StandbyError):
            raise found
        return found

    def update(self, _text: str) -> None: ...


async def looked(nodes: Nodes) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return await until_done(cast("Client", nodes), [part(name) for name in nodes.told], nodes, look_s=0.0)


async def test_a_node_that_dies_takes_only_its_own_part_with_it() -> None:
    gone = Unavailable("node 'b' does not answer", remedy="see it")
    nodes = Nodes(a=lambda look: part("a", "done" if look == 6 else "recording"), b=lambda _: gone)
    done, lost = await looked(nodes)
    assert [(one["node"], one["state"]) for one in done] == [("a", "done")]
    assert [(one["node"], one["message"], one["remedy"]) for one in lost] == [("b", "node 'b' does not answer", "see it")]
    assert nodes.looks == {"a": 6, "b": MOST_SILENT}


async def test_a_node_that_is_silent_for_a_moment_is_asked_again() -> None:
    nodes = Nodes(a=lambda look: part("a", "done") if look > 5 else Unavailable("busy") if look % 2 else part("a"))
    done, lost = await looked(nodes)
    assert (len(done), lost) == (1, [])


async def test_a_node_that_was_started_anew_has_forgotten_it() -> None:
    nodes = Nodes(a=lambda _: part("a", "done"), b=lambda _: NotFound("node 'b' knows no profile"))
    done, lost = await looked(nodes)
    assert ([one["node"] for one in done], [one["node"] for one in lost], nodes.looks["b"]) == (["a"], ["b"], 1)


async def test_where_no_node_is_left_the_command_fails() -> None:
    with pytest.raises(Unavailable, match="gone"):
        await looked(Nodes(a=lambda _: Unavailable("gone")))


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/b", ".."])
def test_no_name_of_a_node_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "manifest.json").write_text(json.dumps({"id": "0123456789ab"}))
    told = {"id": "0123456789ab", "endpoint": "e", "failures": [], "nodes": [part(name, "done", folder=str(source))]}
    manifest = collect(told, tmp_path / "out")
    assert manifest["nodes"][0]["copied"] is False
    assert {path.name for path in tmp_path.iterdir()} == {"out", "source"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]


def test_links_are_copied_as_links(tmp_path: Path) -> None:
    """A node's folder may not show a file of whoever collects it."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "manifest.json").write_text(json.dumps({"id": "0123456789ab"}))
    (source / "x.json").symlink_to("/etc/hostname")
    told = {"id": "0123456789ab", "endpoint": "e", "failures": [], "nodes": [part("n1", "done", folder=str(source))]}
    collect(told, tmp_path / "out")
    assert (tmp_path / "out" / "n1" / "x.json").is_symlink()
