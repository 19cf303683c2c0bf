"""The adapter of TensorRT-LLM over the stand-in of its program, and specs for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineSpec
from standby.runtime.engines.tensorrt_llm import TensorRtLlm
from standby.runtime.engines.tensorrt_llm_program import TrtLlmProgram
from standby.runtime.process_ledger import ProcessLedger
from support.fake_engine_spec import SERVED_NAME, Option
from support.trtllm_stand_in import KNOBS_FILE

STAND_IN = Path(__file__).with_name("trtllm_stand_in.py")
HOT_OR_COLD, SLEEPING = "1.2.1", "1.4.0"


def trtllm_adapter(ledger: ProcessLedger, version: str = HOT_OR_COLD) -> TensorRtLlm:
    """The adapter, as it would be for this version of the real program."""
    newer = version == SLEEPING
    command = (sys.executable, "-S", str(STAND_IN))
    return TensorRtLlm(ledger, TrtLlmProgram(command, version, names=newer, sleeps=newer, priorities=newer))


def trtllm_spec(
    run_dir: Path,
    *,
    instance: str = "trt1",
    epoch: int = 1,
    slots: int = 2,
    version: str = HOT_OR_COLD,
    served_name: str = SERVED_NAME,
    options: dict[str, Option] | None = None,
    **knobs: Option,
) -> EngineSpec:
    """A spec with engine ``options`` whose model folder carries the stand-in's ``knobs``."""
    model = run_dir / f"model-{instance}-{epoch}"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    (model / KNOBS_FILE).write_text(json.dumps({"version": version, **knobs}))
    return EngineSpec(
        instance=instance,
        epoch=epoch,
        kind=EngineKind.TENSORRT_LLM,
        model_dir=model,
        model_files=("config.json",),
        served_name=served_name,
        slots=slots,
        options=options or {},
        run_dir=run_dir,
    )
