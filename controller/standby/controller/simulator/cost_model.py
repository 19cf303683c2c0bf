"""What the rungs of the replayed models cost, and how one instance serves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from zlib import crc32

import numpy as np

from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung

_SIZE_STREAM: Final = 2


@dataclass(frozen=True, slots=True)
class RungPrice:
    """One rung of a model of S GB: seconds until ready are ``wait_s + wait_s_per_gb·S``.

    While held it takes ``device·S + device_gb`` GB of device memory, ``host·S`` of host memory and ``disk·S`` of disk.
    """

    wait_s: float = 0.0
    wait_s_per_gb: float = 0.0
    device: float = 0.0
    device_gb: float = 0.0
    host: float = 0.0
    disk: float = 0.0

    def wait(self, size_gb: float) -> float:
        """Return the seconds until a model of ``size_gb`` is ready from here."""
        return self.wait_s + self.wait_s_per_gb * size_gb

    def on_device(self, size_gb: float) -> float:
        """Return the GB of device memory that a model of ``size_gb`` holds here."""
        return self.device * size_gb + self.device_gb


_RUNGS: Final[Mapping[Rung, RungPrice]] = MappingProxyType(
    {
        Rung.READY: RungPrice(device=1.0),
        Rung.ASLEEP: RungPrice(wait_s=0.3, wait_s_per_gb=0.05, device_gb=0.5, host=1.0),
        Rung.STAGED: RungPrice(wait_s=5.0, wait_s_per_gb=0.5, disk=1.0),
        Rung.COLD: RungPrice(wait_s=60.0, wait_s_per_gb=1.0),
    }
)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Rungs, prices and service of every replayed model. Times in seconds, sizes in GB.

    ``device_price``, ``host_price`` and ``disk_price`` are the price of one GB for one second of each kind of memory, in
    units of a GB·s of device memory. ``warm_up_s`` is replayed and not counted.
    """

    rungs: Mapping[Rung, RungPrice] = field(default_factory=lambda: _RUNGS)
    device_price: float = 1.0
    host_price: float = 0.1
    disk_price: float = 0.005
    exec_s: float = 2.0
    slots: int = 16
    smallest_gb: float = 1.0
    largest_gb: float = 40.0
    warm_up_s: float = 3600.0

    def size_gb(self, function: str, seed: int) -> float:
        """Return the size of ``function``'s model: log-uniform, and the same in every subset of a trace."""
        u = float(np.random.default_rng([seed, _SIZE_STREAM, crc32(function.encode())]).random())
        return self.smallest_gb * math.exp(u * math.log(self.largest_gb / self.smallest_gb))

    def wait_s(self, rung: Rung, size_gb: float) -> float:
        """Return the seconds until a model of ``size_gb`` is ready from ``rung``."""
        return self.rungs[rung].wait(size_gb)

    def hold(self, rung: Rung, size_gb: float) -> float:
        """Return the price of holding ``rung`` for one second."""
        at = self.rungs[rung]
        return self.device_price * at.on_device(size_gb) + (self.host_price * at.host + self.disk_price * at.disk) * size_gb


def load(path: Path) -> CostModel:
    """Read a cost model from JSON: fields of CostModel, ``rungs`` by lower-case name. What is absent keeps its default.

    Raises InvalidInput.
    """
    return parse(read_object(path))


def read_object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in ``path``. Raises InvalidInput."""
    try:
        said = json.loads(path.read_text())
    except OSError as error:
        raise InvalidInput(f"cost model {path} cannot be read: {error.strerror}", remedy="name a JSON file") from error
    except ValueError as error:
        raise InvalidInput(f"cost model {path} is not JSON: {error}", remedy='write e.g. {"host_price": 0.1}') from error
    if not isinstance(said, dict):
        raise InvalidInput(f"cost model {path} holds a {type(said).__name__}, not an object", remedy='write {"rungs": …}')
    return said


def parse(said: Mapping[str, Any]) -> CostModel:
    """Return the cost model that ``said`` describes. Raises InvalidInput naming the field, its value and the limit."""
    known_only(said, {f.name for f in fields(CostModel)}, "the cost model")
    numbers = {name: number(name, value) for name, value in said.items() if name != "rungs"}
    if "slots" in numbers:
        numbers["slots"] = int(_at_least(1, "slots", numbers["slots"]))
    model = CostModel(rungs=_rungs(said.get("rungs", {})), **numbers)  # type: ignore[arg-type] # slots is made an int above
    for name in ("exec_s", "smallest_gb"):
        if getattr(model, name) <= 0:
            raise InvalidInput(f"{name} is {getattr(model, name)}, it must be above 0", remedy="correct the cost model")
    _at_least(model.smallest_gb, "largest_gb", model.largest_gb)
    return model


def _rungs(said: object) -> Mapping[Rung, RungPrice]:
    if not isinstance(said, Mapping):
        raise InvalidInput(f"rungs is a {type(said).__name__}, not an object", remedy="name rungs: ready, asleep, staged, cold")
    known_only(said, {rung.label for rung in _RUNGS}, "rungs")
    prices = dict(_RUNGS)
    for label, entries in said.items():
        if not isinstance(entries, Mapping):
            raise InvalidInput(f"rung {label} is a {type(entries).__name__}, not an object", remedy='e.g. {"wait_s": 5}')
        known_only(entries, {f.name for f in fields(RungPrice)}, f"rung {label}")
        prices[Rung[label.upper()]] = RungPrice(**{name: number(f"{label}.{name}", v) for name, v in entries.items()})
    return MappingProxyType(prices)


def known_only(said: Mapping[str, Any], names: set[str], where: str) -> None:
    """Raise InvalidInput for a field that is not among ``names``."""
    unknown = sorted(set(said) - names)
    if unknown:
        raise InvalidInput(f"{where} has no field {unknown[0]!r}", remedy=f"known are {', '.join(sorted(names))}")


def number(name: str, value: object) -> float:
    """Return ``value`` as a number that is finite and not negative. Raises InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"{name} is {value!r}, not a finite number", remedy="correct the cost model")
    return _at_least(0, name, float(value))


def _at_least(limit: float, name: str, value: float) -> float:
    if value < limit:
        raise InvalidInput(f"{name} is {value:g}, the least is {limit:g}", remedy="correct the cost model")
    return value
