"""The program of a llama.cpp engine: one model behind one unix socket, and sleep by signal.

``python -m standby.runtime.engines.llama_cpp_child --spec FILE``

========  ============================================================================================
signal    what happens
========  ============================================================================================
SIGUSR1   falls asleep: gives memory back, then stops itself (state T). Sent only to an engine without work.
SIGUSR2   the same for an engine that still works: its own memory stays as it is.
SIGCONT   wakes: the engine serves at once, while this thread reads the weights in.
SIGTERM   ends at once, by the kernel's own doing: also while the model loads, when no Python code can run.
========  ============================================================================================

All but SIGTERM are blocked in every thread and taken one by one by the main thread, so that no thread of the
engine is interrupted. A SIGCONT that comes while memory is being given back calls the sleep off; one that is pending
from before is discarded by the kernel at the stop.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from standby.host import guard
from standby.runtime import isolation_entry
from standby.runtime.engines.child_protocol import PARENT_VARIABLE, READY_FD_VARIABLE, READY_LINE, SLEEP, SLEEP_BUSY, WAKE
from standby.runtime.paging import drop_zero_blocks, page_in, page_out, trim_heap

if TYPE_CHECKING:
    import xllamacpp


_FLASH_ATTENTION = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}


@dataclass(frozen=True)
class ChildSpec:
    """What the program must know, checked by the adapter. ``model_files``: absolute paths, the first is opened.

    A plain dataclass: importing pydantic here would lengthen every start by a tenth of a second.
    """

    socket: str
    model_files: tuple[str, ...]
    served_name: str
    context: int
    slots: int
    threads: int
    batch: int
    micro_batch: int
    kv_type: str
    flash_attention: str
    prompt_cache_mib: int
    repack: bool
    keep_cached: bool
    verbosity: int


def main() -> None:
    """Load in a thread of its own, and take signals here."""
    guard.arm(int(os.environ[PARENT_VARIABLE]))
    isolation_entry.enter()
    spec = _read_spec()
    # Before any other thread exists: threads inherit the mask, and an unblocked SIGUSR1 would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {SLEEP, SLEEP_BUSY, WAKE})
    threading.Thread(target=_load, args=(spec,), daemon=True).start()
    files = frozenset(spec.model_files)
    while True:
        received = signal.sigwait({SLEEP, SLEEP_BUSY, WAKE})
        if received == WAKE:
            page_in(files, interrupted=lambda: not {SLEEP, SLEEP_BUSY}.isdisjoint(signal.sigpending()))
        else:
            _fall_asleep(files, keep_cached=spec.keep_cached, idle=received == SLEEP)


def _fall_asleep(files: frozenset[str], *, keep_cached: bool, idle: bool) -> None:
    page_out(files, keep_cached=keep_cached)
    if idle:
        drop_zero_blocks()
        trim_heap()
    if WAKE not in signal.sigpending():
        os.kill(os.getpid(), signal.SIGSTOP)


def _load(spec: ChildSpec) -> None:
    """Load the model and say so; the server object lives as long as this thread, which is as long as the process."""
    try:
        server = _serve(spec)
    except BaseException:  # noqa: BLE001 - whatever it is, this process is of no use and must say why and end
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    _announce()
    threading.Event().wait()
    del server


def _serve(spec: ChildSpec) -> xllamacpp.Server:
    import xllamacpp  # noqa: PLC0415 - only this process may load the engine's native code

    parameters = xllamacpp.CommonParams()
    parameters.model.path = spec.model_files[0]
    parameters.model_alias = {spec.served_name}
    parameters.hostnames = [spec.socket]
    parameters.n_parallel = spec.slots
    parameters.n_ctx = spec.context * spec.slots
    parameters.kv_unified = False  # each slot has its own context: one long request cannot starve the others
    parameters.n_batch = spec.batch
    parameters.n_ubatch = min(spec.micro_batch, spec.batch)
    # Threads wait for each other by spinning: two engines with a thread for every processor ran at a quarter of their
    # speed on 2 processors, with half of them at nine tenths. The door and the gateway need a share as well.
    parameters.cpuparams.n_threads = spec.threads or max(1, len(os.sched_getaffinity(0)) // 2)
    parameters.cache_type_k = parameters.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{spec.kv_type.upper()}")
    parameters.flash_attn_type = getattr(
        xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{_FLASH_ATTENTION[spec.flash_attention]}"
    )
    parameters.cache_ram_mib = spec.prompt_cache_mib
    parameters.no_extra_bufts = not spec.repack
    parameters.fit_params = False  # it would silently reshape the engine to the memory that happens to be free
    parameters.endpoint_metrics = True
    parameters.use_jinja = True
    parameters.ui = False
    parameters.verbosity = spec.verbosity
    return xllamacpp.Server(parameters)


def _announce() -> None:
    descriptor = int(os.environ[READY_FD_VARIABLE])
    os.write(descriptor, READY_LINE)
    os.close(descriptor)


def _read_spec() -> ChildSpec:
    parser = argparse.ArgumentParser(description="Serves one GGUF model on a unix socket.")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file, see ChildSpec")
    return ChildSpec(**json.loads(parser.parse_args().spec.read_bytes()))


if __name__ == "__main__":
    main()
