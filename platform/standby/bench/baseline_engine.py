"""A plain llama.cpp server in a process of its own: ``python -m standby.bench.baseline_engine MODEL SOCKET SLOTS NAME``.

It is the very engine that standby's nodes run, with the settings that they have by default, and nothing around it: no
mapping that survives, no sleep, no probe. ``/health`` says when it takes requests.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

_CONTEXT: Final = 2048
_BATCH: Final = 2048
_MICRO_BATCH: Final = 512
_PROMPT_CACHE_MIB: Final = 64
_QUIET: Final = 2


def main() -> None:
    """Load and serve until killed. Raises whatever the engine raises for a model that it cannot serve."""
    import xllamacpp  # noqa: PLC0415 - the engine's native code, for this process only

    model, socket, slots, name = sys.argv[1:5]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.model_alias = {name}
    parameters.hostnames = [socket]
    parameters.n_parallel = int(slots)
    parameters.n_ctx = _CONTEXT * int(slots)
    parameters.kv_unified = False
    parameters.n_batch = _BATCH
    parameters.n_ubatch = _MICRO_BATCH
    parameters.cpuparams.n_threads = max(1, len(os.sched_getaffinity(0)) // 2)
    parameters.cache_ram_mib = _PROMPT_CACHE_MIB
    parameters.no_extra_bufts = True
    parameters.fit_params = False
    parameters.use_jinja = True
    parameters.ui = False
    parameters.verbosity = _QUIET
    server = xllamacpp.Server(parameters)
    threading.Event().wait()
    del server


if __name__ == "__main__":
    main()
