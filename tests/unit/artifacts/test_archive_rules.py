"""Names and numbers of archive members: what comes out under which path, and what refuses the whole archive."""

from __future__ import annotations

import pytest

from standby.artifacts.archive_rules import (
    ArchiveLimits,
    MemberKind,
    Rejected,
    Roster,
    accept,
    is_left_out,
    too_dense,
    unwrapped,
    wrapper_of,
)

pytestmark = pytest.mark.decision

FILE, FOLDER = MemberKind.FILE, MemberKind.FOLDER


@pytest.mark.parametrize(
    ("name", "kind", "path"),
    [
        ("model.gguf", FILE, "model.gguf"),
        ("./model.gguf", FILE, "model.gguf"),
        ("a b+é%2e.gguf", FILE, "a b+é%2e.gguf"),
        ("m/", FOLDER, "m"),
        ("./", FOLDER, ""),
        (".", FOLDER, ""),
    ],
)
def test_accepted(name: str, kind: MemberKind, path: str) -> None:
    assert accept(name, kind, 1) == path


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("../../agent.conf", FILE, "holds '..'"),
        ("a/../b", FILE, "holds '..'"),
        ("..", FOLDER, "holds '..'"),
        ("/etc/passwd", FILE, "is an absolute path"),
        ("/", FOLDER, "is an absolute path"),
        ("w", MemberKind.SYMLINK, "is a symbolic link"),
        ("w", MemberKind.HARDLINK, "is a hard link"),
        ("w", MemberKind.FIFO, "is a FIFO"),
        ("w", MemberKind.DEVICE, "is a device"),
        ("w", MemberKind.OTHER, "is an entry of an unknown kind"),
        ("", FILE, "is no legal file name"),
        ("a//b", FILE, "is no legal file name"),
        ("a/./b", FILE, "is no legal file name"),
        ("a\\..\\b", FILE, "is no legal file name"),
        ("a\nb", FILE, "is no legal file name"),
        ("a\udcffb", FILE, "is not UTF-8"),
        ("x" * 256, FILE, "longer than 255 bytes"),
        ("x/" * 20 + "x", FILE, "21 folders deep"),
        ("/".join(["x" * 200] * 6), FILE, "more than 1024"),
    ],
)
def test_rejected(name: str, kind: MemberKind, says: str) -> None:
    """Field case B06."""
    found = accept(name, kind, 1)
    assert isinstance(found, Rejected)
    assert says in found.reason


def test_one_file_larger_than_everything() -> None:
    assert isinstance(accept("a", FILE, 11, ArchiveLimits(unpacked_bytes=10)), Rejected)


@pytest.mark.parametrize(
    ("paths", "wrapper"),
    [
        (["m/config.json", "m/model.safetensors"], "m"),
        (["m/config.json", "._m", "__MACOSX/m/._config.json"], "m"),
        (["m/config.json", "code/inference.py"], "m"),
        (["m/a", "n/b"], ""),
        (["m/a", "b"], ""),
        (["a"], ""),
        (["code/a.py"], ""),
        ([], ""),
        (["m/deep/a"], "m"),
    ],
)
def test_wrapper(paths: list[str], wrapper: str) -> None:
    assert wrapper_of(paths) == wrapper


def test_unwrapped() -> None:
    assert unwrapped("m/a", "m") == "a"
    assert unwrapped("a", "") == "a"
    assert unwrapped("code/a", "m") == "code/a"
    assert unwrapped("m-evil/a", "m") == "m-evil/a"


@pytest.mark.parametrize("path", ["code/inference.py", "__MACOSX/x", "._config.json", "sub/.DS_Store", ".git/HEAD"])
def test_left_out(path: str) -> None:
    assert is_left_out(path)


@pytest.mark.parametrize("path", ["code", "decode/x", "config.json", "a/code/x"])
def test_not_left_out(path: str) -> None:
    assert is_left_out(path) is None


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a", "./a"], "is there twice"),
        (["w", "w/x"], "lies in a folder that is also a file"),
        (["w/x", "w"], "is there twice"),
        (["w", "w/"], "is a folder and a file"),
        (["w/", "w"], "is there twice"),
        (["a", "b", "c", "d"], "more than 3 members"),
    ],
)
def test_members_that_clash(names: list[str], says: str) -> None:
    roster = Roster(ArchiveLimits(members=3))
    found = [roster.admit(name, FOLDER if name.endswith("/") else FILE, 1) for name in names]
    last = found[-1]
    assert isinstance(last, Rejected)
    assert says in last.reason
    assert not any(isinstance(item, Rejected) for item in found[:-1])


def test_all_files_together() -> None:
    roster = Roster(ArchiveLimits(unpacked_bytes=10))
    assert roster.admit("a", FILE, 6) == "a"
    assert isinstance(roster.admit("b", FILE, 6), Rejected)


def test_folders_may_come_twice_and_late() -> None:
    roster = Roster()
    assert [roster.admit(name, FOLDER, 0) for name in ("./", "m/", "m/")] == [None, None, None]
    assert roster.admit("m/a", FILE, 1) == "m/a"
    assert roster.admit("m/", FOLDER, 0) is None


def test_density_counts_from_a_size_on() -> None:
    limits = ArchiveLimits(ratio=200, ratio_from_bytes=1000)
    assert too_dense(1, 1000, limits) is None
    assert too_dense(10, 2000, limits) is None
    assert too_dense(10, 2001, limits) == "10 packed bytes became 2001, more than 200 for one: a compression bomb"
