"""How long an instance takes for tokens, and what it costs to have it: the model of a device for time-stamped requests.

The default is the service that the public traces of requests were taken from: Llama-2-70B on one machine of eight H100, as
measured by Patel et al., "Splitwise" (ISCA 2024): 95 ms to the first token of 1,500 tokens of context, 28 to 31 ms per token
after it, about twice that with 64 requests in one batch. Climbs are those that are published of sleeping and forked engines.
Every number can be set in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from standby.controller.simulator.cost_model import known_only, number, read_object
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung

# Seconds until ready. Asleep: a wake of weights in host memory, 0.8 to 2.2 s for 3 to 8 GB and about 3 s per 64 GiB; zygote:
# a forked engine that loads from the page cache; staged: a whole start of an engine from the local disk; cold: a download.
_CLIMBS: Final[Mapping[Rung, float]] = MappingProxyType(
    {Rung.ASLEEP: 1.5, Rung.ZYGOTE: 7.3, Rung.STAGED: 40.0, Rung.COLD: 120.0}
)


@dataclass(frozen=True, slots=True)
class TokenModel:
    """Times in seconds; ``devices`` is how many GPUs one instance has, ``instances`` how many may be up at once.

    An instance does one thing at a time: prefills first, one after the other in the order of arrival, ``prefill_s`` and
    ``prefill_token_s`` for each token of context; between them one decode step after the other for all running requests
    together, ``decode_s`` and ``decode_more_s`` for each request beside the first. ``slots`` requests at most are inside. The
    first ``asleep`` instances rest asleep, those above it on ``rest``. ``sleep_s`` is how long one takes to fall asleep,
    ``slo_s`` the wait for a first token that still is good.
    """

    prefill_s: float = 0.005
    prefill_token_s: float = 60e-6
    decode_s: float = 0.028
    decode_more_s: float = 0.028 / 63
    slots: int = 16
    devices: int = 8
    instances: int = 8
    asleep: int = 8
    rest: Rung = Rung.ZYGOTE
    climb_s: Mapping[Rung, float] = field(default_factory=lambda: _CLIMBS)
    sleep_s: float = 0.35
    slo_s: float = 1.0

    def prefill(self, prompt: int) -> float:
        """Return the seconds that the device works on a context of ``prompt`` tokens."""
        return self.prefill_s + self.prefill_token_s * prompt

    def step(self, running: int) -> float:
        """Return the seconds of one decode step of ``running`` requests."""
        return self.decode_s + self.decode_more_s * (running - 1)

    def resting(self, number: int) -> Rung:
        """Return the rung on which the instance ``number``, from 0, rests."""
        return Rung.ASLEEP if number < self.asleep else self.rest


def load(path: Path) -> TokenModel:
    """Read a model from JSON: fields of TokenModel, ``climb_s`` by lower-case rung. What is absent keeps its default.

    Raises InvalidInput naming the field, its value and the limit.
    """
    return parse(read_object(path))


def parse(said: Mapping[str, Any]) -> TokenModel:
    """Return the model that ``said`` describes. Raises InvalidInput."""
    known_only(said, {one.name for one in fields(TokenModel)}, "the token model")
    values: dict[str, Any] = {name: number(name, value) for name, value in said.items() if name not in {"climb_s", "rest"}}
    for name in ("slots", "devices", "instances", "asleep"):
        if name in values:
            values[name] = _whole(name, values[name], least=0 if name == "asleep" else 1)
    if "climb_s" in said:
        values["climb_s"] = _climbs(said["climb_s"])
    if "rest" in said:
        values["rest"] = _rung(said["rest"])
    model = TokenModel(**values)
    if model.decode_s <= 0:
        raise InvalidInput(f"decode_s is {model.decode_s:g}, it must be above 0", remedy="correct the token model")
    return model


def _climbs(said: object) -> Mapping[Rung, float]:
    if not isinstance(said, Mapping):
        raise InvalidInput(f"climb_s is a {type(said).__name__}, not an object", remedy='write e.g. {"asleep": 1.5}')
    return MappingProxyType({**_CLIMBS, **{_rung(name): number(f"climb_s.{name}", value) for name, value in said.items()}})


def _rung(name: object) -> Rung:
    for rung in _CLIMBS:
        if rung.label == name:
            return rung
    raise InvalidInput(f"{name!r} is no rung to rest on", remedy=f"use {', '.join(rung.label for rung in _CLIMBS)}")


def _whole(name: str, value: float, *, least: int) -> int:
    if value != int(value) or value < least:
        raise InvalidInput(f"{name} is {value:g}, it must be a whole number from {least}", remedy="correct the token model")
    return int(value)
