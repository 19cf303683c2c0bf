"""What is said while logs are followed: whose lines they are, and what took the place of what."""

from __future__ import annotations

from typing import Any

from standby.cli.logs_following import Following


def one(name: str = "a", *lines: str, mark: str = "1-1", state: str = "ready", **more: Any) -> dict[str, Any]:
    told = {"id": name, "node": "n1", "state": state, "words": state, "mark": mark, "renewed": False, "missing": ""}
    return {**told, "lines": list(lines), **more}


def answer(*instances: dict[str, Any], failures: tuple[dict[str, str], ...] = ()) -> dict[str, Any]:
    return {"instances": list(instances), "failures": list(failures)}


def test_lines_of_one_instance_come_as_they_are() -> None:
    following = Following(answer(one("a", "old")))
    assert following.after == "a:1-1"
    assert following.take(answer(one("a", "new", mark="1-9"))) == ["new"]
    assert following.after == "a:1-9"
    assert following.take(answer(one("a", mark="1-9"))) == []


def test_lines_of_several_are_told_apart() -> None:
    following = Following(answer(one("a"), one("b")))
    assert following.take(answer(one("a", "x"), one("b", "y"))) == ["\n==> a on n1: ready", "x", "\n==> b on n1: ready", "y"]
    assert following.take(answer(one("a"), one("b", "z"))) == ["z"]


def test_what_takes_the_place_of_another_is_named() -> None:
    following = Following(answer(one("a")))
    assert following.take(answer(one("a", "new", mark="2-4", renewed=True))) == [
        "\n==> a on n1: ready; its engine was started anew",
        "new",
    ]
    assert following.take(answer(one("b", "first", mark="3-5", renewed=True))) == [
        "\n<== a is gone",
        "\n==> b on n1: ready",
        "first",
    ]
    assert following.after == "b:3-5"
    assert following.take(answer()) == ["\n<== b is gone", "no instances: nothing runs; waiting for one"]
    assert following.take(answer()) == []
    assert following.after == ""


def test_a_failure_is_told_once_after_the_last_lines() -> None:
    following = Following(answer(one("a")))
    failed = one("a", "the end", state="failed", words="failed: exit code 1")
    assert following.take(answer(failed)) == ["the end", "\n==> a on n1: failed: exit code 1"]
    assert following.take(answer({**failed, "lines": []})) == []


def test_a_silent_node_is_told_once_and_its_mark_is_kept() -> None:
    following = Following(answer(one("a", mark="1-7")))
    silent = answer(one("a", mark="", missing="its node did not tell"), failures=({"node": "n1", "message": "it is mute"},))
    assert following.take(silent) == ["\nn1: it is mute"]
    assert following.take(silent) == []
    assert following.after == "a:1-7"


def test_the_first_start_of_an_engine_is_no_new_one() -> None:
    following = Following(answer(one("a", mark="", state="starting")))
    assert following.take(answer(one("a", "hello", mark="1-6", renewed=True))) == ["hello"]
