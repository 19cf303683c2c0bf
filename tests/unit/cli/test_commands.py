"""The command line without a gateway: help, lazy commands, wrong usage, exit codes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import types
from importlib.metadata import EntryPoint, version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from standby.cli import lazy
from standby.cli.lazy import Lazy, as_command, load
from standby.cli.main import COMMANDS, app
from standby.domain.errors import ConfigurationError, LeaseLost

RUNNER = CliRunner()


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STANDBY_URL", "STANDBY_API_KEY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STANDBY_STATE_DIR", str(tmp_path))


def test_help_names_every_command() -> None:
    answer = RUNNER.invoke(app, ["--help"])

    assert answer.exit_code == 0
    for name in [*COMMANDS, "controller", "node", "simulate"]:
        assert name in answer.output
    assert "From standby." not in answer.output, "a component of our own has no words of its own in the help"


def test_help_imports_no_command() -> None:
    """``standby --help`` and completion must not pay for httpx, rich tables, pydantic or another component."""
    script = (
        "import sys; from standby.cli.main import app; app(['--help'], standalone_mode=False);"
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    loaded = set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr.split())

    heavy = {"httpx", "pydantic", "psutil", "starlette", "nats", "standby.cli.models", "standby.controller", "standby.gateway"}
    assert "standby.cli.main" in loaded
    assert not loaded & heavy


@pytest.mark.parametrize(
    "words",
    [
        ["models", "register"],
        ["models", "list"],
        ["models", "show"],
        ["models", "delete"],
        ["endpoints", "create"],
        ["endpoints", "list"],
        ["endpoints", "show"],
        ["endpoints", "wait"],
        ["endpoints", "retry"],
        ["endpoints", "delete"],
        ["invoke"],
        ["ps"],
        ["nodes"],
        ["prices"],
        ["credentials", "create"],
        ["credentials", "list"],
        ["credentials", "delete"],
        ["cache", "ls"],
        ["cache", "pin"],
        ["cache", "unpin"],
        ["cache", "evict"],
        ["keys", "create"],
        ["keys", "list"],
        ["keys", "revoke"],
        ["keys", "expire"],
        ["keys", "reseal"],
        ["tenants", "create"],
        ["tenants", "list"],
        ["tenants", "show"],
        ["tenants", "set"],
        ["tenants", "disable"],
        ["tenants", "enable"],
        ["aws"],
        ["events"],
        ["status"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_every_command_has_help_and_json(words: list[str]) -> None:
    answer = RUNNER.invoke(app, [*words, "--help"])

    assert answer.exit_code == 0
    assert "--json" in answer.output


def test_the_version_is_printed() -> None:
    assert RUNNER.invoke(app, ["--version"]).output.strip() == version("standby")


def test_an_unknown_command_suggests_the_nearest() -> None:
    answer = RUNNER.invoke(app, ["endpoint"])

    assert answer.exit_code == 2
    assert "endpoints" in answer.stderr


def test_nothing_to_talk_to_is_exit_code_7() -> None:
    answer = RUNNER.invoke(app, ["ps"])

    assert answer.exit_code == 7
    assert "error: no gateway is known" in answer.stderr
    assert "try: start one with `standby up`" in answer.stderr


def test_a_refused_connection_is_exit_code_7() -> None:
    url = f"http://127.0.0.1:{a_free_port()}"

    answer = RUNNER.invoke(app, ["--url", url, "--key", "k", "ps"])

    assert answer.exit_code == 7
    assert f"no gateway answers at {url}" in answer.stderr
    assert "start it with `standby up`" in answer.stderr


@pytest.mark.parametrize("words", [["--json", "ps"], ["ps", "--json"]], ids=" ".join)
def test_errors_are_json_too(words: list[str]) -> None:
    answer = RUNNER.invoke(app, words)

    assert answer.stdout == ""
    error = json.loads(answer.stderr)["error"]
    assert (error["code"], error["exit_code"]) == ("unavailable", 7)


def test_a_wrong_url_is_wrong_input() -> None:
    answer = RUNNER.invoke(app, ["--url", "localhost:8080", "--key", "k", "ps"])

    assert answer.exit_code == 2
    assert "is no URL" in answer.stderr


@pytest.mark.parametrize("limit", ["soon", "-1"])
def test_a_wrong_duration_is_refused_before_anything_is_created(limit: str) -> None:
    answer = RUNNER.invoke(app, ["endpoints", "create", "e", "--model", "m", "--timeout", limit])

    assert answer.exit_code == 2
    assert limit in answer.stderr


def test_a_component_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(ConfigurationError, match=r"the command 'x' is not installed.*pip install"):
        load("x", Lazy("standby.nothing_here:command", "", ""))


def test_a_components_function_or_app_becomes_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    def command(count: int = 1) -> None:
        print(f"ran {count}")

    whole = typer.Typer()
    whole.command("one")(command)
    whole.command("two")(command)

    for found, words in ((command, ["--count", "2"]), (whole, ["two", "--count", "2"])):
        ready = as_command("mine", found)
        assert ready.name == "mine"
        assert as_command("mine", ready) is ready
        with pytest.raises(SystemExit) as ended:
            ready.main(words)
        assert ended.value.code == 0
        assert capsys.readouterr().out == "ran 2\n"


def test_a_components_error_becomes_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of other components raise the tree's errors, too; they are found by their entry points."""
    module = types.ModuleType("a_component")

    def command() -> None:
        raise LeaseLost("this controller is not the leader")

    module.command = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_component", module)
    point = EntryPoint("lead", "a_component:command", lazy.ENTRY_POINTS)
    monkeypatch.setattr(lazy, "entry_points", lambda group: [point] if group == lazy.ENTRY_POINTS else [])

    answer = RUNNER.invoke(app, ["lead"])

    assert answer.exit_code == LeaseLost.exit_code
    assert answer.stderr == "error: this controller is not the leader\n"
