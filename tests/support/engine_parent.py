"""A small agent to be killed: starts an engine and says which processes it has.

``python engine_parent.py RUN_DIR LEDGER_DIR [GGUF]``; without a GGUF it is a fake engine with a grandchild.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineAdapter, EngineSpec
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.process_ledger import ProcessLedger


async def main(run_dir: Path, ledger_dir: Path, gguf: Path | None) -> None:
    """Start the engine, print the numbers of its processes, wait to be killed."""
    ledger = ProcessLedger(ledger_dir)
    fake = FakeEngine(ledger, Path(__file__).with_name("fake_engine.py"))
    engine: EngineAdapter = LlamaCpp(ledger) if gguf else fake
    handle = await engine.start(
        EngineSpec(
            instance="orphan",
            epoch=3,
            kind=EngineKind.LLAMA_CPP if gguf else EngineKind.FAKE,
            model_dir=gguf.parent if gguf else run_dir,
            model_files=(gguf.name if gguf else "model.gguf",),
            served_name="m",
            slots=1,
            options={} if gguf else {"spawn_child": True, "ignore_term": True},
            run_dir=run_dir,
        )
    )
    await engine.wait_loaded(handle, 30)
    print(*ledger.survivors(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None))
