"""A log is read on from where it was read last: nothing twice, nothing lost, no secret in two pieces."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.runtime.log_following import Bounds, NextLines, end_of, lines_after
from standby.telemetry import redact

BOUNDS = Bounds(100, 10_000)


def read(mark: str, log: Path, bounds: Bounds = BOUNDS, *, ended: bool = False) -> NextLines:
    return lines_after(mark, log, log.with_name("before.log"), bounds, ended=ended)


def grow(log: Path, data: bytes) -> None:
    with log.open("ab") as stream:
        stream.write(data)


def test_only_whole_lines_are_told_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_given", ["not-for-your-eyes"])
    log = tmp_path / "a.log"
    log.write_bytes(b"one\ntwo\nkey not-for-")
    mark, size = end_of(log, ended=False)
    assert size == 20
    assert read(mark, log) == ((), mark, False)
    grow(log, b"your-eyes\r\n\n 10%\r 20%\r")
    told = read(mark, log)
    assert told.lines == ("key ****", "", " 10%")
    assert read(told.mark, log).lines == ()
    assert read(told.mark, log, ended=True).lines == (" 20%",)
    assert read("", log).lines[:2] == ("one", "two")


def test_a_line_without_an_end_is_told_when_its_engine_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"whole\npart")
    assert read("", log).lines == ("whole",)
    ended = read("", log, ended=True)
    assert (ended.lines, ended.mark) == (("whole", "part"), end_of(log, ended=True)[0])


def test_what_does_not_fit_comes_next(tmp_path: Path) -> None:
    """By lines, by the file's bytes, and by the text's, since each byte that is none becomes three."""
    log = tmp_path / "a.log"
    log.write_bytes(b"".join(b"%02d\n" % number for number in range(10)))
    for bounds in (Bounds(3, 1000), Bounds(100, 7), Bounds(100, 4)):
        mark, found = "", list[str]()
        for _ in range(10):
            told = read(mark, log, bounds)
            found += told.lines
            mark = told.mark
        assert found == [f"{number:02d}" for number in range(10)], bounds
    log.write_bytes(b"\xff\xff\xff\n" * 4)
    assert len(read("", log, Bounds(100, 20)).lines) == 2


def test_the_rest_of_an_endless_line_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 25 + b"\nnext\n")
    mark, found = "", list[str]()
    for _ in range(5):
        told = read(mark, log, Bounds(100, 10))
        found += told.lines
        mark = told.mark
    assert found == ["x" * 10, "next"]


def test_the_end_of_a_life_comes_before_the_next_one(tmp_path: Path) -> None:
    """Also where the new engine has not written yet; a life that is gone altogether is only passed over."""
    log = tmp_path / "a.log"
    log.write_bytes(b"begun\n")
    mark = read("", log).mark
    grow(log, b"it is ove")
    log.rename(tmp_path / "before.log")
    rest = read(mark, log)
    assert (rest.lines, rest.renewed) == (("it is ove",), False)
    with pytest.raises(FileNotFoundError):
        read(rest.mark, log)
    log.write_bytes(b"again\n")
    assert read(mark, log).lines == ("it is ove",)
    anew = read(rest.mark, log)
    assert (anew.lines, anew.renewed) == (("again",), True)
    assert read("1-0", log)[0::2] == (("again",), True)
    assert read(anew.mark[:-1] + "ff", log).renewed, "a log that is shorter than it was is another one"


def test_a_file_with_the_number_of_an_earlier_one_is_another_life(tmp_path: Path) -> None:
    """As after two restarts in a row, or where something has emptied the log and its engine goes on writing to it."""
    log = tmp_path / "a.log"
    log.write_bytes(b"first life\n")
    mark = read("", log).mark
    with log.open("r+b") as stream:
        stream.truncate(0)
    grow(log, b"second life\nand it is longer\n")

    anew = read(mark, log)

    assert (anew.lines, anew.renewed) == (("second life", "and it is longer"), True)
    assert read(anew.mark, log) == ((), anew.mark, False)


@pytest.mark.parametrize("mark", ["x", "1", "1-2-3", "-", "1-zz"])
def test_no_mark(tmp_path: Path, mark: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|values to unpack"):
        read(mark, tmp_path / "a.log")
