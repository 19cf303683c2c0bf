"""Every tag and setting of ours that AWS's clients may use is in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.sagemaker.control.environment import CREDENTIALS, ENGINE, OPTION_PREFIX, OUTPUT
from standby.sagemaker.control.policy import FIELDS, OTHER_TAGS, POLICY_TAGS
from standby.sagemaker.control.traffic import TRAFFIC_TAGS

PAGE = Path(__file__).parents[3] / "docs" / "sagemaker-extensions.md"


TAGS = (*POLICY_TAGS, *TRAFFIC_TAGS, *OTHER_TAGS)
SETTINGS = (*(f"STANDBY_{field.upper()}" for field in FIELDS), ENGINE, CREDENTIALS, OPTION_PREFIX, OUTPUT)


@pytest.mark.parametrize("name", [*TAGS, *SETTINGS])
def test_it_is_documented(name: str) -> None:
    assert f"`{name}" in PAGE.read_text()
