"""A small agent to be killed: starts a fake engine with a grandchild and says so.

``python engine_parent.py RUN_DIR LEDGER_DIR``
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineSpec
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.process_ledger import ProcessLedger


async def main(run_dir: Path, ledger_dir: Path) -> None:
    """Start the engine, print the numbers of its processes, wait to be killed."""
    ledger = ProcessLedger(ledger_dir)
    engine = FakeEngine(ledger, Path(__file__).with_name("fake_engine.py"))
    handle = await engine.start(
        EngineSpec(
            instance="orphan", epoch=3, kind=EngineKind.FAKE, model_dir=run_dir, model_files=("model.gguf",),
            served_name="m", slots=1, options={"spawn_child": True, "ignore_term": True}, run_dir=run_dir,
        )
    )  # fmt: skip
    await engine.wait_loaded(handle, 20)
    print(*ledger.survivors(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
