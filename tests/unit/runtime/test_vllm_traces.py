"""How vLLM is told where its own spans go; llama.cpp has none, and is told nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from standby.domain.model import EngineKind
from standby.domain.node import DeviceKind
from standby.runtime.engines import vllm_traces
from standby.runtime.engines.base import EngineSpec
from standby.runtime.engines.vllm import Vllm
from standby.runtime.process_ledger import ProcessLedger
from support.vllm import stand_in_program

URL = "http://collector:4318/v1/traces"
ALL = frozenset(vllm_traces.PACKAGES)


@pytest.fixture
def spec(run_dir: Path) -> EngineSpec:
    (run_dir / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    return EngineSpec(
        instance="i-1",
        epoch=3,
        kind=EngineKind.VLLM,
        model_dir=run_dir,
        model_files=("config.json",),
        served_name="org/smol",
        slots=2,
        run_dir=run_dir,
    )


def command(ledger: ProcessLedger, spec: EngineSpec, packages: frozenset[str], traces: str | None) -> list[str]:
    adapter = Vllm(ledger, stand_in_program(DeviceKind.CPU, packages=packages), traces=traces)
    return list(adapter.command(spec, spec.run_dir / "engine.sock", spec.run_dir))


def test_it_is_told_where_a_collector_is(ledger: ProcessLedger, spec: EngineSpec) -> None:
    assert command(ledger, spec, ALL, URL)[-2:] == ["--otlp-traces-endpoint", URL]
    assert vllm_traces.environment(URL, spec) == {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_RESOURCE_ATTRIBUTES": "standby.instance=i-1,standby.epoch=3",
    }


def test_without_a_collector_it_is_told_nothing(ledger: ProcessLedger, spec: EngineSpec) -> None:
    assert "--otlp-traces-endpoint" not in command(ledger, spec, ALL, None)
    assert vllm_traces.environment(None, spec) == {}


def test_what_is_not_installed_beside_it_is_named_once(
    ledger: ProcessLedger, spec: EngineSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM would refuse to start with the flag and without the packages."""
    with caplog.at_level(logging.WARNING):
        found = command(ledger, spec, ALL - {"opentelemetry-exporter-otlp-proto-grpc"}, URL)
    assert "--otlp-traces-endpoint" not in found
    (record,) = caplog.records
    assert "opentelemetry-exporter-otlp-proto-grpc is not installed" in record.getMessage()
