"""The sealing key from the environment, a file or a command; what goes wrong is said without what was read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from standby.domain.errors import ConfigurationError
from standby.host.sealing import SealingKey, generate_key
from standby.host.sealing_source import load_sealing_key

KEY, OLDER = generate_key(), generate_key()


def version(text: str) -> str:
    return SealingKey.parse(text).version


def test_no_source_is_no_key() -> None:
    assert load_sealing_key(None, None, None) is None


def test_the_same_text_from_every_source(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n{OLDER}\n")
    command = f'{sys.executable} -c \'print("{KEY}", "{OLDER}")\''

    for key in (
        load_sealing_key(SecretStr(f"{KEY} {OLDER}"), None, None),
        load_sealing_key(None, file, None),
        load_sealing_key(None, None, command),
    ):
        assert key is not None
        assert key.version == version(KEY)
        older = key.of_version(version(OLDER))
        assert older is not None
        assert older.unseal(SealingKey.parse(OLDER).seal(b"x", "here"), "here") == b"x"
        assert key.of_version("00000000") is None


def test_two_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="STANDBY_SECRETS_KEY and STANDBY_SECRETS_KEY_FILE are both set"):
        load_sealing_key(SecretStr(KEY), tmp_path, None)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/nowhere/at/all", "cannot be started"),
        ("sh -c 'echo secret-words; exit 3'", "ended with code 3"),
        ("sh -c 'printf \"\\377\"'", "no text"),
        ("echo 'secret words' '", "no command line"),
        ("", "no command line"),
        ("echo secret-words", "not usable"),
        ("true", "it is empty"),
    ],
)
def test_a_command_that_yields_no_key(command: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        load_sealing_key(None, None, command)

    assert "secret-words" not in str(refused.value)


def test_a_file_that_yields_no_key(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "short").write_text("c2hvcnQ=")

    for name in ("missing", "bytes", "short", "."):
        with pytest.raises(ConfigurationError):
            load_sealing_key(None, tmp_path / name, None)
