"""What a model may set of its engine, and every way in which engines fail, stands in docs/engines.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from standby.domain.errors import EngineError
from standby.domain.model import EngineKind
from support import reference

PAGE = (reference.ROOT / "docs" / "engines.md").read_text()
OPTIONS = [
    (kind, name, info.description)
    for kind, options in reference.ENGINE_OPTIONS.items()
    for name, info in options.model_fields.items()
]
# What looks like a code of a failure and is the name of a setting or field.
NO_CODES = {"engine_cache_uri", "engine_options", "engine_devices"}


def test_every_real_engine_has_a_table() -> None:
    assert set(reference.ENGINE_OPTIONS) == set(EngineKind) - {EngineKind.FAKE}


@pytest.mark.parametrize(("kind", "name", "described"), OPTIONS)
def test_every_option_says_what_it_means(kind: EngineKind, name: str, described: str | None) -> None:
    assert described
    assert f"| `{name}` |" in PAGE.partition(f"<!-- options of {kind}:")[2].partition(f"<!-- end of the options of {kind} ")[0]


def test_the_tables_are_what_the_classes_say() -> None:
    """``make reference`` writes them again."""
    assert reference.engines_page(PAGE) == PAGE


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the options of llama_cpp"):
        reference.engines_page("# Engines\n")


def test_every_failure_of_an_engine_is_explained() -> None:
    named = {code for text in _sources() for code in re.findall(r'"((?:engine|zygote|canary)_[a-z_]+)"', text)} - NO_CODES
    assert {"engine_exit", "engine_stalled", "canary_mismatch", "zygote_unfit"} <= named
    assert sorted(code for code in named | _codes(EngineError) if f"`{code}`" not in PAGE) == []


def _sources() -> Iterator[str]:
    for part in ("runtime", "warm_pool"):
        for path in sorted((reference.ROOT / part / "standby").rglob("*.py")):
            yield path.read_text()


def _codes(error: type[EngineError]) -> set[str]:
    return {error.code}.union(*(_codes(below) for below in error.__subclasses__()))
