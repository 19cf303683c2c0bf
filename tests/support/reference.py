"""The reference tables under ``docs/``, made from the code: ``python tests/support/reference.py`` writes them again.

Two pages are made whole; in ``docs/engines.md`` only the tables of options are, between comments that name the engine.
The variables that no Settings class reads and the notes on who exposes a metric stand here, next to the check.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin

import annotated_types
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from standby.bus.settings import BusSettings
from standby.console.settings import ConsoleSettings
from standby.controller.settings import ControllerSettings
from standby.domain.model import EngineKind
from standby.domain.settings import Settings
from standby.gateway.settings import GatewaySettings
from standby.runtime.engines.llama_cpp_options import LlamaCppOptions
from standby.runtime.engines.registry import RuntimeSettings
from standby.runtime.engines.tensorrt_llm_options import TensorRtLlmOptions
from standby.runtime.engines.vllm_options import VllmOptions
from standby.telemetry import metrics
from standby.telemetry.tracing_settings import TracingSettings
from standby.warm_pool.settings import NodeSettings

ROOT: Final = Path(__file__).parents[2]
COMPONENTS: Final = ("platform", "controller", "runtime", "warm_pool")

READERS: Final[Mapping[type[Settings], tuple[str, ...]]] = MappingProxyType(
    {
        GatewaySettings: ("gateway",),
        ConsoleSettings: ("gateway",),
        ControllerSettings: ("controller",),
        NodeSettings: ("node",),
        RuntimeSettings: ("node",),
        BusSettings: ("gateway", "controller", "node"),
        TracingSettings: ("gateway", "node"),
    }
)

ENGINE_OPTIONS: Final[Mapping[EngineKind, type[BaseModel]]] = MappingProxyType(
    {
        EngineKind.LLAMA_CPP: LlamaCppOptions,
        EngineKind.VLLM: VllmOptions,
        EngineKind.TENSORRT_LLM: TensorRtLlmOptions,
    }
)

# Each process's registry, and the component of the repository that sets what is in it.
PROCESSES: Final = MappingProxyType(
    {
        "gateway": (metrics.GATEWAY, "platform"),
        "node": (metrics.NODE, "warm_pool"),
        "controller": (metrics.CONTROLLER, "controller"),
    }
)

COMMAND_LINE: Final = MappingProxyType(
    {
        "STANDBY_BENCH_KEY": "bearer key that `standby bench` shows to a URL; also `--target-key`",
        "STANDBY_URL": "the gateway; also `--url`; unset: what the connection file in the state folder says",
        "STANDBY_API_KEY": "bearer key; also `--key`; unset: the connection file's",
        "STANDBY_STATE_DIR": "state folder of `standby up`; also `--state-dir`; "
        "unset: `$XDG_STATE_HOME/standby`, else `~/.local/state/standby`",
        "STANDBY_STORE_SECRET_KEY": "secret key for `standby credentials create`; also `--secret-key-file`",
        "STANDBY_STORE_SESSION_TOKEN": "session token for `standby credentials create`; also `--session-token-file`",
    }
)

BETWEEN_PROCESSES: Final = MappingProxyType(
    {
        "STANDBY_ENGINE_MARK": "tells a node's engine processes from all others",
        "STANDBY_ENGINE_PARENT": "process id whose end ends the engine",
        "STANDBY_ENGINE_CGROUP": "cgroup that an engine enters by itself",
        "STANDBY_ZYGOTE_CONTROL": "descriptor over which a node asks its zygote for forks",
        "STANDBY_READY_FD": "descriptor on which an engine says that it has loaded",
    }
)


MODEL_ENVIRONMENT: Final = MappingProxyType(
    {
        "STANDBY_ENGINE": "engine of the model",
        "STANDBY_CREDENTIALS": "name of the tenant's stored keys for the model's store",
        "STANDBY_KEEP_READY": "and the other times of the scale policy, see `sagemaker-extensions.md`",
        "STANDBY_OUTPUT": "`lmi` or `tgi`: how answers to `inputs` are written",
    }
)


def settings_page() -> str:
    """Return ``docs/settings.md``."""
    rows = sorted(_by_variable().items())
    return _page(
        "Settings",
        "Every component reads its settings from the environment once, at start, and names each wrong value. `standby up` "
        "hands its own environment on to what it starts, makes the secrets, and sets the gateways' names, addresses and "
        "ports, the node's state folder and where the bus is.\n\n"
        "Variables whose names end in `_S` and times at the bus are in seconds; `_BYTES` are bytes.",
        _table(("variable", "default", "meaning", "read by"), (row for _, row in rows)),
        "## The command line",
        _table(("variable", "meaning"), ((f"`{name}`", what) for name, what in COMMAND_LINE.items())),
        "## Set by a node for its engines, never by hand",
        _table(("variable", "meaning"), ((f"`{name}`", what) for name, what in BETWEEN_PROCESSES.items())),
        "## In the environment of a model that an AWS client creates",
        _table(("variable", "meaning"), ((f"`{name}`", what) for name, what in MODEL_ENVIRONMENT.items())),
    )


def metrics_page() -> str:
    """Return ``docs/metrics.md``."""
    return _page(
        "Metrics",
        "Prometheus text at the gateway's `/metrics` (open to this machine; elsewhere it needs an administrator's key), and "
        "on loopback ports of a node (`STANDBY_METRICS_PORT`) and a controller (`STANDBY_CONTROLLER_METRICS_PORT`). Each "
        "process is a target of its own: `standby up` starts them all with ports of theirs, and lists them for Prometheus's "
        "`file_sd_configs` in `prometheus-targets.json` in its state folder.\n\n"
        "Labels hold registered names only; what a caller invents is `other`. The series of an endpoint stay while it exists, "
        "at zero as well, and go with it; those of its memory on a node go when it has had no instance there for a quarter "
        "of an hour. A counter is a sum of one process: add the gateways up.\n\n"
        "Each process also exposes the client library's own `process_…` figures: "
        "`sum(rate(process_cpu_seconds_total[5m])) / sum(rate(standby_requests_total[5m]))` is what a request costs.",
        _table(
            ("metric", "type", "labels", "meaning", "exposed by"),
            (_metric_row(metric, who) for metric, who in _exposed()),
        ),
    )


def engines_page(text: str) -> str:
    """Return ``docs/engines.md``: ``text`` with its tables of options made anew. Raises ValueError where one has no place."""
    for kind, options in ENGINE_OPTIONS.items():
        begin, end = f"<!-- options of {kind}: written by `make reference` -->\n", f"<!-- end of the options of {kind} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"there is no place for the options of {kind}: {begin.strip()} … {end}")
        text = f"{before}{begin}\n{options_table(options)}\n\n{end}{after}"
    return text


def options_table(options: type[BaseModel]) -> str:
    """Return the table of one engine's options."""
    described = options.model_fields.items()
    rows = ((f"`{name}`", _default(info), _allowed(info), info.description or "") for name, info in described)
    return _table(("option", "default", "allowed", "meaning"), rows)


def settings_classes() -> set[str]:
    """Return the names of all Settings classes in the product's source."""
    return {name for text in _sources() for name in re.findall(r"^class (\w+)\(Settings\)", text, re.MULTILINE)}


def variables_in_source() -> set[str]:
    """Return every ``STANDBY_…`` variable that the product's source names."""
    return {name for text in _sources() for name in re.findall(r"\bSTANDBY_[A-Z_]*[A-Z]\b(?!_?\*)", text)}


def variable(field: str) -> str:
    """Return the environment variable of a settings field."""
    return f"STANDBY_{field.upper()}"


def fields() -> Iterable[tuple[str, FieldInfo, tuple[str, ...]]]:
    """Yield (name, field, the processes that read it) of every settings class."""
    for cls, readers in READERS.items():
        for name, info in cls.model_fields.items():
            yield name, info, readers


def defined_metrics() -> list[MetricWrapperBase]:
    """Return every metric that the telemetry module defines, in its order."""
    return [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]


def _by_variable() -> dict[str, tuple[str, ...]]:
    rows: dict[str, tuple[str, ...]] = {}
    for name, info, readers in fields():
        default, meaning = _default(info), info.description or ""
        known = rows.get(variable(name))
        if known is not None and known[1:3] != (default, meaning):
            raise ValueError(f"{variable(name)} says {known[1:3]} for one process and {(default, meaning)} for another")
        read_by = ", ".join(([known[3]] if known else []) + list(readers))
        rows[variable(name)] = (f"`{variable(name)}`", default, meaning, read_by)
    return rows


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if info.default_factory is not None or info.default is None:
        return "unset"
    value: Any = info.default
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _allowed(info: FieldInfo) -> str:
    kind = info.annotation
    chosen = [part for part in (kind, *get_args(kind)) if get_origin(part) is Literal]
    if chosen:
        return ", ".join(f"`{value}`" for value in get_args(chosen[0]))
    if bool in (kind, *get_args(kind)):
        return "`true`, `false`"
    low = next((part.ge for part in info.metadata if isinstance(part, annotated_types.Ge)), None)
    high = next((part.le for part in info.metadata if isinstance(part, annotated_types.Le)), None)
    return "text" if low is None and high is None else f"{low} to {high}"


def set_somewhere(metric: MetricWrapperBase) -> bool:
    """Whether a process that exposes the metric names it where it is set; what is the same for all stands in telemetry."""
    (name,) = (name for name, value in vars(metrics).items() if value is metric)
    texts = _sources("platform/standby/telemetry", *(PROCESSES[who][1] for who in exposed_by(metric)))
    return any(re.search(rf"\bmetrics\.{name}\b", text) for text in texts)


def exposed_by(metric: MetricWrapperBase) -> tuple[str, ...]:
    """Return the processes at whose /metrics it stands."""
    return tuple(who for who, (registry, _) in PROCESSES.items() if metric in registry._collector_to_names)


def _exposed() -> Iterable[tuple[MetricWrapperBase, str]]:
    for metric in defined_metrics():
        yield metric, ", ".join(exposed_by(metric))


def _metric_row(metric: MetricWrapperBase, who: str) -> tuple[str, ...]:
    described = next(iter(metric.describe()))
    total = "_total" if described.type == "counter" else ""
    labels = ", ".join(metric._labelnames) or "none"
    return f"`{described.name}{total}`", described.type, labels, described.documentation, who


def _sources(*folders: str) -> list[str]:
    return [path.read_text() for folder in folders or COMPONENTS for path in sorted((ROOT / folder).rglob("*.py"))]


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", "<!-- Written by `make reference`; do not edit. -->", *parts)) + "\n"


def main() -> None:
    """Write the pages."""
    engines = ROOT / "docs" / "engines.md"
    engines.write_text(engines_page(engines.read_text()))
    (ROOT / "docs" / "settings.md").write_text(settings_page())
    (ROOT / "docs" / "metrics.md").write_text(metrics_page())


if __name__ == "__main__":
    main()
