"""Finding vLLM's parts in whichever version is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standby.runtime.engines.vllm_compat import accelerator_initialised, first_of


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a module that can be imported, and one that needs what is not installed."""
    folder = tmp_path / "moving_parts"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "here.py").touch()
    (folder / "needy.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder.name
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]


def test_the_first_place_that_this_version_has_is_taken(package: str) -> None:
    assert first_of([f"{package}.elsewhere.there", f"{package}.here"]).__name__ == f"{package}.here"


def test_a_version_that_has_none_of_the_places_is_told_which(package: str) -> None:
    with pytest.raises(ImportError, match=rf"none of {package}\.one, {package}\.two"):
        first_of([f"{package}.one", f"{package}.two"])


def test_a_part_that_is_there_and_lacks_something_is_not_passed_over(package: str) -> None:
    """Else a broken installation would be told as another version."""
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        first_of([f"{package}.needy", f"{package}.here"])


def test_without_torch_no_accelerator_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert not accelerator_initialised()
