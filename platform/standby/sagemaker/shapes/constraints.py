"""The rules of a shape: required, lengths, ranges, patterns, enumerations; told with the words of AWS's services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from botocore.model import Shape

from standby.sagemaker.shapes.patterns import matches

# A mebibyte of wrong tags must not become an answer of ten.
MOST_TOLD: Final = 50
LONGEST_VALUE: Final = 1024

_SCALARS: Final = frozenset({"string", "integer", "long", "float", "double", "boolean", "timestamp", "blob"})


def violations(shape: Shape, value: Mapping[str, Any]) -> list[str]:
    """Return every broken rule of a coerced request, each in AWS's words, with the path of the member."""
    return list(_structure(shape, value, ""))


def message(broken: Sequence[str]) -> str:
    """Return AWS's message for broken rules; of very many only the first are told."""
    count = len(broken)
    return f"{count} validation error{'' if count == 1 else 's'} detected: {'; '.join(broken[:MOST_TOLD])}"


def told(path: str, value: Any, rule: str, *, sensitive: bool = False) -> str:
    """Return one broken rule in AWS's words: for rules that the model does not hold, e.g. memory in steps."""
    if value is None:
        shown = "Value null"
    elif sensitive:
        shown = "Value"
    else:
        shown = f"Value '{_shown(value)}'"
    return f"{shown} at '{path}' failed to satisfy constraint: {rule}"


def _structure(shape: Shape, value: Mapping[str, Any], path: str) -> Iterator[str]:
    for name in shape.required_members:
        if value.get(name) is None:
            yield told(_join(path, name), None, "Member must not be null")
    for name, item in value.items():
        if item is not None:
            yield from _any(shape.members[name], item, _join(path, name))


def _any(shape: Shape, value: Any, path: str) -> Iterator[str]:
    sensitive = bool(shape.metadata.get("sensitive"))
    for rule in broken_rules(shape, value):
        yield told(path, value, rule, sensitive=sensitive)
    match shape.type_name:
        case "structure":
            yield from _structure(shape, value, path)
        case "list":
            yield from _list(shape, value, path)
        case "map":
            yield from _map(shape, value, path)


def _list(shape: Shape, value: Sequence[Any], path: str) -> Iterator[str]:
    member = shape.member
    for number, item in enumerate(value, 1):
        if item is None:
            yield told(f"{path}.{number}.member", None, "Member must not be null")
        elif member.type_name not in _SCALARS:
            yield from _any(member, item, f"{path}.{number}.member")
    # Of simple members AWS tells the list and all rules at once.
    if member.type_name in _SCALARS and any(item is not None and broken_rules(member, item) for item in value):
        yield told(path, value, f"Member must satisfy constraint: [{', '.join(rules(member))}]")


def _map(shape: Shape, value: Mapping[str, Any], path: str) -> Iterator[str]:
    if any(broken_rules(shape.key, key) for key in value):
        yield told(path, value, f"Map keys must satisfy constraint: [{', '.join(rules(shape.key))}]")
    member = shape.value
    simple = member.type_name in _SCALARS
    for key, item in value.items():
        if item is None:
            yield told(f"{path}.{_shown(key)}.member", None, "Member must not be null")
        elif not simple:
            yield from _any(member, item, f"{path}.{_shown(key)}.member")
    if simple and any(item is not None and broken_rules(member, item) for item in value.values()):
        yield told(path, value, f"Map value must satisfy constraint: [{', '.join(rules(member))}]")


def broken_rules(shape: Shape, value: Any) -> list[str]:
    """Return the rules of the shape itself, without its members, that the value breaks."""
    limits = shape.metadata
    broken: list[str] = []
    size = value if isinstance(value, int | float) else len(value) if hasattr(value, "__len__") else None
    if size is not None and not isinstance(value, bool):
        if "max" in limits and size > limits["max"]:
            broken.append(_limit(shape, "less", limits["max"]))
        if "min" in limits and size < limits["min"]:
            broken.append(_limit(shape, "greater", limits["min"]))
    if isinstance(value, str):
        if "pattern" in limits and not matches(limits["pattern"], value):
            broken.append(_pattern(limits["pattern"]))
        if limits.get("enum") and value not in limits["enum"]:
            broken.append(_enumeration(limits["enum"]))
    return broken


def rules(shape: Shape) -> list[str]:
    """Return all rules of the shape itself."""
    limits = shape.metadata
    told_rules: list[str] = []
    if "max" in limits:
        told_rules.append(_limit(shape, "less", limits["max"]))
    if "min" in limits:
        told_rules.append(_limit(shape, "greater", limits["min"]))
    if "pattern" in limits:
        told_rules.append(_pattern(limits["pattern"]))
    if limits.get("enum"):
        told_rules.append(_enumeration(limits["enum"]))
    return told_rules


def _limit(shape: Shape, side: str, limit: float) -> str:
    what = "value" if shape.type_name in {"integer", "long", "float", "double"} else "length"
    return f"Member must have {what} {side} than or equal to {limit}"


def _pattern(pattern: str) -> str:
    return f"Member must satisfy regular expression pattern: {pattern}"


def _enumeration(values: Sequence[str]) -> str:
    return f"Member must satisfy enum value set: [{', '.join(values)}]"


def _join(path: str, name: str) -> str:
    own = name[:1].lower() + name[1:]
    return f"{path}.{own}" if path else own


def _shown(value: Any) -> str:
    """Return a value as AWS's services print it, up to a bound."""
    text = "".join(_pieces(value, LONGEST_VALUE))
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _pieces(value: Any, room: int) -> Iterator[str]:
    """Yield a value's text piece by piece and stop where ``room`` characters are passed."""
    match value:
        case bool():
            yield "true" if value else "false"
        case str():
            yield value[: room + 1]
        case bytes():
            yield f"{len(value)} bytes"
        case datetime():
            yield value.isoformat()
        case Mapping():
            yield from _row("{", ((key, item) for key, item in value.items()), "}", room)
        case list():
            yield from _row("[", ((None, item) for item in value), "]", room)
        case _:
            yield str(value)


def _row(opening: str, items: Iterator[tuple[Any, Any]], closing: str, room: int) -> Iterator[str]:
    yield opening
    for number, (key, item) in enumerate(items):
        if room < 0:
            return
        text = ("" if number == 0 else ", ") + ("" if key is None else f"{str(key)[: room + 1]}=")
        text += "".join(_pieces(item, room))
        room -= len(text)
        yield text
    yield closing
