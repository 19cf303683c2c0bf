"""Where the engines' sockets lie: short enough for the kernel, whatever the folders of the user are called."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from standby.warm_pool.run_dir import LONGEST, run_dir


def test_below_the_state_folder_where_that_is_short() -> None:
    with tempfile.TemporaryDirectory(prefix="sb-", dir="/tmp") as short:
        found = run_dir(Path(short))
        mode = found.stat().st_mode & 0o777

    assert found == Path(short) / "run"
    assert mode == 0o700


def test_elsewhere_where_state_and_temporary_folder_are_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * LONGEST)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    found = run_dir(deep)
    again = run_dir(deep)
    other = run_dir(tmp_path / ("e" * LONGEST))
    for folder in {found, other}:
        folder.rmdir()

    assert found == again != other
    assert len(os.fsencode(found)) <= LONGEST
