"""Which of AWS's operations the platform uses, and random requests for them, made from AWS's own models."""

from __future__ import annotations

import hashlib
import json
import random
import string
from collections.abc import Iterator, Sequence
from typing import Any, Final

from botocore.model import Shape

from standby.sagemaker.shapes.coercion import coerce
from standby.sagemaker.shapes.services import AUTOSCALING, CLOUDWATCH, RUNTIME, SAGEMAKER, STS, operation

USED: Final[dict[str, tuple[str, ...]]] = {
    SAGEMAKER: (
        "AddTags", "CreateEndpoint", "CreateEndpointConfig", "CreateInferenceComponent", "CreateModel", "DeleteEndpoint",
        "DeleteEndpointConfig", "DeleteInferenceComponent", "DeleteModel", "DeleteTags", "DescribeEndpoint",
        "DescribeEndpointConfig", "DescribeInferenceComponent", "DescribeModel", "ListEndpointConfigs", "ListEndpoints",
        "ListInferenceComponents", "ListModels", "ListTags", "UpdateEndpoint", "UpdateEndpointWeightsAndCapacities",
        "UpdateInferenceComponent", "UpdateInferenceComponentRuntimeConfig",
    ),
    RUNTIME: ("InvokeEndpoint", "InvokeEndpointAsync", "InvokeEndpointWithResponseStream"),
    AUTOSCALING: (
        "DeleteScalingPolicy", "DeregisterScalableTarget", "DescribeScalableTargets", "DescribeScalingPolicies",
        "PutScalingPolicy", "RegisterScalableTarget",
    ),
    STS: ("GetCallerIdentity",),
    CLOUDWATCH: ("GetMetricData", "GetMetricStatistics", "ListMetrics"),
}  # fmt: skip


def used() -> Iterator[tuple[str, str]]:
    """Yield service and operation."""
    for service, names in USED.items():
        for name in names:
            yield service, name


def digest(service: str, name: str) -> str:
    """Return a digest of everything in an operation's shapes that our code acts on."""
    model = operation(service, name)
    told = {
        "http": dict(model.http),
        "input": _described(model.input_shape, ()),
        "output": _described(model.output_shape, ()),
        "errors": sorted(f"{shape.name} {dict(shape.metadata)}" for shape in model.error_shapes),
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _described(shape: Shape | None, above: tuple[str, ...]) -> Any:
    if shape is None:
        return None
    if shape.name in above:
        return f"again {shape.name}"
    below = (*above, shape.name)
    told: dict[str, Any] = {"type": shape.type_name, "where": dict(shape.serialization), "rules": dict(shape.metadata)}
    match shape.type_name:
        case "structure":
            told["members"] = {name: _described(member, below) for name, member in shape.members.items()}
        case "list":
            told["member"] = _described(shape.member, below)
        case "map":
            told["key"], told["value"] = _described(shape.key, below), _described(shape.value, below)
    return told


class Inventor:
    """Makes requests for a shape: legal ones as far as that is simple, and with ``harm`` (0 to 1) broken ones.

    ``names`` are what members are called by, most of the time; ``accounts`` stand in ARNs. The same seed gives the same
    requests.
    """

    def __init__(
        self, seed: int, *, harm: float = 0.0, names: Sequence[str] = (), accounts: Sequence[str] = ("111122223333",)
    ) -> None:
        self.random = random.Random(seed)
        self.harm = harm
        self.names = names
        self.accounts = accounts

    def request(self, service: str, name: str) -> Any:
        """Return a request as JSON's values."""
        shape = operation(service, name).input_shape
        return {} if shape is None else self._value(shape, 0)

    def answer(self, service: str, name: str) -> Any:
        """Return an answer as a handler gives it: datetimes and bytes."""
        shape = operation(service, name).output_shape
        return {} if shape is None else coerce(shape, self._value(shape, 0))

    def vary(self, shape: Shape, value: Any) -> Any:
        """Return a request with one member made anew, somewhere in it."""
        if shape.type_name == "list" and isinstance(value, list) and value:
            at = self.random.randrange(len(value))
            return [*value[:at], self.vary(shape.member, value[at]), *value[at + 1 :]]
        if shape.type_name != "structure" or not isinstance(value, dict):
            return self._value(shape, 1)
        deep = [name for name in value if shape.members[name].type_name in {"structure", "list"}]
        if deep and self.random.random() < 0.6:
            name = self.random.choice(deep)
            return {**value, name: self.vary(shape.members[name], value[name])}
        name = self.random.choice(list(shape.members))
        return {**value, name: self._value(shape.members[name], 1)}

    def _value(self, shape: Shape, depth: int) -> Any:
        if self.random.random() < self.harm:
            return self._harmful(shape)
        match shape.type_name:
            case "structure":
                return self._structure(shape, depth)
            case "list":
                limits = shape.metadata
                least = limits.get("min", 0)
                count = self.random.choice([least, least + 1, min(limits.get("max", 3), 3)])
                return [self._value(shape.member, depth + 1) for _ in range(max(count, least))]
            case "map":
                return {self._text(shape.key): self._value(shape.value, depth + 1) for _ in range(self.random.randint(0, 2))}
            case _:
                return self._scalar(shape)

    def _structure(self, shape: Shape, depth: int) -> dict[str, Any]:
        chance = 0.6 if depth < 2 else 0.25
        made = {}
        for name, member in shape.members.items():
            if name in shape.required_members or (depth < 8 and self.random.random() < chance):
                made[name] = self._value(member, depth + 1)
        if self.random.random() < self.harm:
            made[self._any_text(12)] = self._junk(0)
        return made

    def _scalar(self, shape: Shape) -> Any:
        limits = shape.metadata
        match shape.type_name:
            case "string":
                return self._text(shape)
            case "integer" | "long":
                low = limits.get("min", 0)
                return self.random.choice(
                    [low, limits.get("max", low + 5), self.random.randint(low, limits.get("max", low + 5))]
                )
            case "float" | "double":
                low = limits.get("min", 0)
                return float(self.random.choice([low, limits.get("max", low + 1), low + 0.5]))
            case "boolean":
                return self.random.random() < 0.5
            case "timestamp":
                return self.random.choice([1767225600.5, 0, 1767225600, "2026-01-01T00:00:00Z"])
            case _:
                return "aGVsbG8="

    def _text(self, shape: Shape) -> str:
        limits = shape.metadata
        if limits.get("enum"):
            return str(self.random.choice(limits["enum"]))
        pattern = limits.get("pattern", "")
        if self.names and shape.name.endswith("Name") and self.random.random() < 0.9:
            return self.random.choice(self.names)
        if "iam::" in pattern:
            return "arn:aws:iam::111122223333:role/standby"
        if ":sagemaker:" in pattern and pattern.startswith("arn"):
            kind = self.random.choice(["endpoint", "model", "endpoint-config", "inference-component", "x"])
            account, name = self.random.choice(self.accounts), self.random.choice(self.names or "e")
            return f"arn:aws:sagemaker:us-east-1:{account}:{kind}/{name}"
        if "://" in pattern:
            return "s3://bucket/key"
        least, most = limits.get("min", 1), limits.get("max", 20)
        return "".join(
            self.random.choices(string.ascii_letters, k=max(least, min(most, self.random.choice([least, 8, most, 63]))))
        )

    def _harmful(self, shape: Shape) -> Any:
        limits = shape.metadata
        edges: list[Any] = [None, self._junk(0), "", -1, 0, 2**31, 2**63, 2**64, 1e308, 1.5, True, [], {}, [None], {"": None}]
        if "max" in limits and limits["max"] < 10_000:
            edges += [limits["max"] + 1, "a" * (limits["max"] + 1), "-" * limits["max"], ["a"] * (limits["max"] + 1)]
        if "min" in limits:
            edges += [limits["min"] - 1, "a" * max(0, limits["min"] - 1)]
        return self.random.choice(edges)

    def _any_text(self, most: int) -> str:
        alphabet = string.printable + "é\u0000\u2028\ufeff日本😀\u202e\u0660"
        return "".join(self.random.choices(alphabet, k=self.random.randint(0, most)))

    def _junk(self, depth: int) -> Any:
        if depth < 3 and self.random.random() < 0.4:
            if self.random.random() < 0.5:
                return [self._junk(depth + 1) for _ in range(self.random.randint(0, 3))]
            return {self._any_text(6): self._junk(depth + 1) for _ in range(self.random.randint(0, 3))}
        return self.random.choice([
            None, True, False, 0, -1, 10**400, 2**53 + 1, -0.0, 1e-320, 3.5e38, self._any_text(40), "-" * 5000, "a" * 20_000,
            "NaN", "Infinity", "../../etc/passwd", "' OR 1=1 --", "${jndi:ldap://x}", "%00", "\r\nx-injected: 1",
        ])  # fmt: skip


if __name__ == "__main__":
    # After a look at what changed: python tests/support/aws_operations.py > tests/unit/sagemaker/operation_digests.json
    print(json.dumps({f"{service}.{name}": digest(service, name) for service, name in used()}, indent=1))
