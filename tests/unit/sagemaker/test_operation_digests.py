"""AWS's models move with botocore: what we use of them must not change unnoticed."""

import json
from pathlib import Path

import pytest
from botocore.model import Shape

from standby.sagemaker.shapes.patterns import compiled
from standby.sagemaker.shapes.services import load_all, operation, service_model
from support.aws_operations import digest, used

STORED = json.loads((Path(__file__).parent / "operation_digests.json").read_text())


def test_the_stored_list_is_that_of_the_used_operations() -> None:
    assert sorted(STORED) == sorted(f"{service}.{name}" for service, name in used())


@pytest.mark.parametrize(("service", "name"), list(used()))
def test_an_operation_is_still_what_it_was(service: str, name: str) -> None:
    """Where this fails after an upgrade: read AWS's change, then store the new digests (support/aws_operations.py)."""
    assert digest(service, name) == STORED[f"{service}.{name}"]


@pytest.mark.parametrize(("service", "name"), list(used()))
def test_every_pattern_of_a_request_is_understood(service: str, name: str) -> None:
    found = _patterns(operation(service, name).input_shape, set())
    for pattern in found:
        compiled(pattern)


def test_models_are_read_once() -> None:
    load_all()
    assert service_model("sagemaker") is service_model("sagemaker")


def _patterns(shape: Shape | None, seen: set[str]) -> set[str]:
    if shape is None or shape.name in seen:
        return set()
    seen.add(shape.name)
    found = {shape.metadata["pattern"]} if "pattern" in shape.metadata else set()
    match shape.type_name:
        case "structure":
            for member in shape.members.values():
                found |= _patterns(member, seen)
        case "list":
            found |= _patterns(shape.member, seen)
        case "map":
            found |= _patterns(shape.key, seen) | _patterns(shape.value, seen)
    return found
