"""The script that the documentation shows, as it stands there, in a shell that ``standby aws`` points here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.aws_user import TINY, aws_place
from support.fake_engine_spec import short_dir

PAGE = Path(__file__).parents[2] / "docs" / "sagemaker.md"


async def test_the_documented_script_runs(tmp_path: Path) -> None:
    """Only the engine is named: the test's artifact is one that no real engine can answer from."""
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    fake = script.replace('"Environment": {}', '"Environment": {"STANDBY_ENGINE": "fake"}')
    assert fake != script
    program = tmp_path / "script.py"
    program.write_text(fake)
    with short_dir() as folder:
        async with aws_place(folder, real=False) as place:
            ran = await place.shell(f"python {program} {TINY}")
            assert "Paris" in ran.out
            listed = await place.user("list_models")
            assert listed["Models"] == []


@pytest.mark.parametrize("page", re.findall(r"\]\(([a-z-]+\.md)\)", PAGE.read_text()))
def test_its_links_lead_somewhere(page: str) -> None:
    assert (PAGE.parent / page).exists()
