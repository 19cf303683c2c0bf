"""Where the gateway is: options before the file, and the file's key to the file's gateway only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from standby.cli.connection import Connection, default_state_dir, read_connection, resolve
from standby.domain.errors import ConfigurationError, Unavailable

STORED = {"url": "http://127.0.0.1:8080", "api_key": "sk-standby-stored"}


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    (tmp_path / "connection.json").write_text(json.dumps(STORED))
    return tmp_path


def test_the_file_of_a_running_platform_is_enough(state_dir: Path) -> None:
    assert resolve(None, None, state_dir) == Connection(STORED["url"], STORED["api_key"])


def test_a_key_alone_goes_to_the_running_platform(state_dir: Path) -> None:
    assert resolve(None, "mine", state_dir) == Connection(STORED["url"], "mine")


def test_url_and_key_need_no_file(tmp_path: Path) -> None:
    assert resolve("http://far/", "mine", tmp_path) == Connection("http://far", "mine")


def test_the_stored_key_never_goes_to_another_server(state_dir: Path) -> None:
    assert resolve("http://far", None, state_dir) == Connection("http://far", None)
    assert resolve("http://127.0.0.1:8080/", None, state_dir) == Connection(STORED["url"], STORED["api_key"])


def test_without_anything_the_remedy_is_to_start_it(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"no gateway is known.*standby up") as error:
        resolve(None, None, tmp_path)
    assert error.value.exit_code == 7


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"url": 1}'])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "connection.json").write_text(content)

    with pytest.raises(ConfigurationError, match=r"connection\.json is not a connection file"):
        read_connection(tmp_path)


def test_the_state_folder_follows_the_environment(tmp_path: Path) -> None:
    assert default_state_dir({"STANDBY_STATE_DIR": "/s", "XDG_STATE_HOME": "/x"}) == Path("/s")
    assert default_state_dir({"XDG_STATE_HOME": "/x"}) == Path("/x/standby")
    assert default_state_dir({}) == Path.home() / ".local/state/standby"


def test_a_connection_never_shows_its_key() -> None:
    assert "secret" not in repr(Connection("http://far", "secret"))
