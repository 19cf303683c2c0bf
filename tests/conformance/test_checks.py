"""Each check of the conformance list is claimed by a test: ``@pytest.mark.check(number)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CHECKS: Final = {
    1: "describing what is not there is a ValidationException with the ARN in double quotes",
    2: "a model made twice is refused",
    3: "MaxConcurrency 500 is refused with the limit",
    4: "MemorySizeInMB 1500 is refused",
    5: "ProvisionedConcurrency above MaxConcurrency is refused",
    6: "a config of an unknown model is refused",
    7: "an endpoint of an unknown config is refused",
    8: "the waiter endpoint_in_service returns; descriptions have the shapes of AWS's model, times are datetimes",
    9: "an engine that fails its ping: Failed with a reason, WaiterError, no update, but a deletion",
    10: "the waiter endpoint_deleted returns, and a second deletion is refused",
    11: "a change while another one is under way is refused",
    12: "an update under load loses nothing; the config's name changes when it is in service",
    13: "weights and capacities change at once; an unknown variant is refused",
    14: "25 endpoints in pages of 10, newest first; an unknown SortBy is refused",
    15: "tags make the round; a bad ARN is refused",
    16: "an invocation's answer has the container's type, the variant, and custom attributes only if they were set",
    17: "an unknown endpoint is a ValidationError of the caller's account",
    18: "a container's 400 is a ModelError with its status, message and log, asked once",
    19: "one call above MaxConcurrency is throttled, asked three times by the SDK, and no run of the engine",
    20: "a cold start beyond the limit is ModelNotReadyException; a later call is served by the one worker",
    21: "a stream has the container's bytes, each frame at once; a killed worker is an EventStreamError",
    22: "4 MiB are served by a serverless endpoint, one byte more is a ValidationError",
    23: "asynchronous: 202, the id echoed, result or failure in S3, not both inputs, an end of patience",
    24: "signatures: secrets, keys, tokens, clocks, bodies, targets and tenants that are not right",
    25: "inference components: from zero and back, by their own header and by scaling policies",
}


def claims() -> Iterator[tuple[int, str]]:
    """Yield the number and the name of every test with a mark."""
    for file in Path(__file__).parents[1].rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from ((number, f"{file.name}::{node.name}") for number in map(_number, node.decorator_list) if number)


def _number(decorator: ast.expr) -> int | None:
    match decorator:
        case ast.Call(func=ast.Attribute(attr="check"), args=[ast.Constant(value=int(number))]):
            return number
    return None


def test_every_check_is_claimed_and_no_other() -> None:
    claimed = {number for number, _test in claims()}
    assert sorted(claimed) == sorted(CHECKS)
