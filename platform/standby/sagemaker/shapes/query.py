"""Requests of AWS's query protocol: a form with flattened names such as ``Dimensions.member.1.Name``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from botocore.model import Shape

from standby.sagemaker.shapes.coercion import scalar_of_text, serialization
from standby.sagemaker.shapes.requests import check
from standby.sagemaker.shapes.services import operation

_MOST_FIELDS: Final = 5000
_MOST_MEMBERS: Final = 1000


def parse_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form; of equal names the last counts. Raises AwsError SerializationException."""
    try:
        text = body.decode("ascii")
        fields = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise serialization("The body is not a valid form") from None
    return dict(fields)


def parse_query(service: str, name: str, form: Mapping[str, str]) -> dict[str, Any]:
    """Return the members of a request, checked; names that the shape does not have are left out.

    Raises AwsError SerializationException or ValidationException.
    """
    shape = operation(service, name).input_shape
    if shape is None:
        return {}
    request = _structure(shape, _tree(form))
    check(shape, request)
    return request


def _tree(form: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields as nested maps: ``A.member.1`` becomes A → member → 1; a name that is leaf and branch is refused."""
    root: dict[str, Any] = {}
    for name, value in form.items():
        *branches, leaf = name.split(".", 16)
        at = root
        for branch in branches:
            following = at.setdefault(branch, {})
            if not isinstance(following, dict):
                raise serialization(f"The field {branch[:80]} is a value and a structure at once")
            at = following
        if isinstance(at.get(leaf), dict):
            raise serialization(f"The field {leaf[:80]} is a value and a structure at once")
        at[leaf] = value
    return root


def _structure(shape: Shape, tree: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, member in shape.members.items():
        branch = tree.get(member.serialization.get("name", name))
        if branch is not None:
            found[name] = _value(member, branch)
    return found


def _value(shape: Shape, branch: Any) -> Any:
    if shape.type_name in {"structure", "list"}:
        if not isinstance(branch, dict):
            if shape.type_name == "list" and branch == "":
                return []
            raise serialization(f"A value was found where a {shape.type_name} was expected")
        return _structure(shape, branch) if shape.type_name == "structure" else _list(shape, branch)
    if isinstance(branch, dict) or shape.type_name == "map":
        raise serialization("A structure was found where a value was expected")
    return scalar_of_text(shape, branch)


def _list(shape: Shape, branch: Mapping[str, Any]) -> list[Any]:
    members = branch.get("member", {})
    if not isinstance(members, dict) or len(members) > _MOST_MEMBERS:
        raise serialization("A list was expected, as Name.member.1, Name.member.2, …")
    if not all(number.isascii() and number.isdigit() and len(number) < 8 for number in members):
        raise serialization("The members of a list are numbered: Name.member.1, Name.member.2, …")
    return [_value(shape.member, members[number]) for number in sorted(members, key=int)]
