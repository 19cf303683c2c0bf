"""A small agent to be killed: hatches a zygote, forks engines, and says which processes it has.

``python zygote_parent.py FOLDER``; prints the zygote's number, then those of two engines and of the first one's helpers.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from standby.runtime.process_ledger import ProcessLedger
from support.zygote_rig import hatched


async def main(folder: Path) -> None:
    """Start everything, print the numbers, wait to be killed."""
    ledger = ProcessLedger(folder / "ledger")
    async with hatched(folder, ledger) as rig:
        numbers = [rig.zygote.pid]
        for number, helpers in ((1, True), (2, False)):
            record = ledger.intend(f"engine{number}", 1)
            process = await rig.fork(number, mark=record.mark, helpers=helpers)
            ledger.confirm(record, process)
            numbers.append(process.pid)
        print(json.dumps(numbers + rig.report(1)["helpers"]), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
