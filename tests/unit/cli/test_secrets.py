"""The secrets of ``standby up``, where a secret key comes from, and how weights are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from standby.cli.main import app
from standby.cli.models import parse_variant
from standby.cli.state import StateDir
from standby.domain.errors import InvalidInput
from standby.host.sealing import SealingKey


def test_secrets_are_made_once(tmp_path: Path) -> None:
    first = StateDir(tmp_path).secrets()

    assert StateDir(tmp_path).secrets() == first
    assert SealingKey.parse(first.secrets_key).version
    assert (tmp_path / "secrets.json").stat().st_mode & 0o777 == 0o600


def test_an_older_file_gets_a_key_and_keeps_the_others(tmp_path: Path) -> None:
    """Made anew at each start, it would open nothing that was stored before."""
    older = {"node_token": "n", "key_pepper": "p", "admin_key": "a"}
    (tmp_path / "secrets.json").write_text(json.dumps(older))

    first = StateDir(tmp_path).secrets()

    assert StateDir(tmp_path).secrets() == first
    assert json.loads((tmp_path / "secrets.json").read_text()) == {**older, "secrets_key": first.secrets_key}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "there is no secret key, and no terminal to ask on"),
        (["--secret-key-file", "/nowhere/at/all"], "/nowhere/at/all cannot be read: No such file or directory"),
        (["--secret-key-file", "-"], "- holds no secret"),
    ],
)
def test_a_missing_secret_is_said_before_anything_is_sent(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDBY_STORE_SECRET_KEY", raising=False)
    answer = CliRunner().invoke(app, ["--url", "http://127.0.0.1:1", "credentials", "create", "c", "--access-key", "A", *words])

    assert answer.exit_code == 2
    assert said in answer.stderr


def test_a_secret_is_never_an_argument() -> None:
    answer = CliRunner().invoke(app, ["credentials", "create", "c", "--access-key", "A", "--secret-key", "S"])

    assert answer.exit_code == 2


def test_weights_are_named() -> None:
    assert parse_variant("q4=s3://b/k=1.gguf") == ("q4", "s3://b/k=1.gguf")
    for wrong in ("q4", "=s3://b/k", "q4=", "s3://b/k"):
        with pytest.raises(InvalidInput, match="not of the form name=uri"):
            parse_variant(wrong)
