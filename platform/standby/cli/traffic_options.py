"""What ``standby endpoints create`` is told of traffic and of several engines, as the API takes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from standby.cli.models import parse_option
from standby.domain.durations import parse_duration
from standby.domain.errors import InvalidInput
from standby.domain.model import EngineKind

# How a field is written on the command line, and whether it is a number.
_FIELDS: Final[Mapping[str, tuple[str, bool]]] = {
    "name": ("name", False),
    "engine": ("engine", False),
    "weights": ("weights", False),
    "slots": ("slots", True),
    "memory-mb": ("memory_mb", True),
    "min-ready": ("min_ready", True),
    "max-instances": ("max_instances", True),
}
_OPTION: Final = "option."
_EXAMPLE: Final = "e.g. --backend engine=vllm,weights=full,slots=8,min-ready=1"


def parse_backend(text: str) -> dict[str, Any]:
    """Return ``engine=vllm,slots=8,option.context=4096`` as a backend of the API's. Raises InvalidInput naming the field."""
    backend: dict[str, Any] = {}
    options: dict[str, str | int | float | bool] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InvalidInput(f"--backend {text!r}: {part!r} is not of the form field=value", remedy=_EXAMPLE)
        if name.startswith(_OPTION):
            options |= dict([parse_option(f"{name.removeprefix(_OPTION)}={value}")])
            continue
        field = name.replace("_", "-")
        if field not in _FIELDS:
            known = ", ".join((*_FIELDS, f"{_OPTION}NAME"))
            raise InvalidInput(f"--backend {text!r}: there is no field {name!r}", remedy=f"known are: {known}")
        key, number = _FIELDS[field]
        backend[key] = _number(field, value) if number else value
    if "engine" not in backend:
        kinds = ", ".join(kind.value for kind in EngineKind if kind is not EngineKind.FAKE)
        raise InvalidInput(f"--backend {text!r}: 'engine' is missing", remedy=f"give one of {kinds}; {_EXAMPLE}")
    return {**backend, "engine_options": options} if options else backend


def traffic_body(file: Path | None, **words: str | None) -> dict[str, Any]:
    """Return the traffic policy: what the file says, then what single options say.

    ``words``: tier, latency_target, priority, max_priority, queue, hybrid. Raises InvalidInput.
    """
    told = {} if file is None else _read(file)
    target = words["latency_target"]
    if target is not None:
        parse_duration(target)
    for field, value in (("tier", words["tier"]), ("latency_target", target), ("queue", words["queue"])):
        if value is not None:
            told[field] = value
    for parent, field, value in (
        ("priority", "default", words["priority"]),
        ("priority", "highest", words["max_priority"]),
        ("hybrid", "policy", words["hybrid"]),
    ):
        if value is not None:
            told[parent] = {**_object(told.get(parent, {}), parent), field: value}
    return told


def backends_body(several: Iterable[str]) -> list[dict[str, Any]]:
    """Return the backends in the order in which they were given: the first one is preferred."""
    return [parse_backend(text) for text in several]


def _number(field: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidInput(f"--backend: {field}={value!r} is no whole number", remedy=_EXAMPLE) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return _object(json.loads(file.read_text()), str(file))
    except OSError as error:
        raise InvalidInput(f"--traffic {file}: {error.strerror}", remedy="give a JSON file") from error
    except ValueError as error:
        raise InvalidInput(f"--traffic {file} is not JSON: {error}", remedy="see docs/traffic.md for an example") from error


def _object(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InvalidInput(f"--traffic: {what} is a JSON {type(found).__name__}, not an object", remedy="see docs/traffic.md")
    return dict(found)
