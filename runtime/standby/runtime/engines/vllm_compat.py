"""All that is known here of vLLM's insides: where its parts lie in 0.32 and 0.33, and what of its start can be done before.

Runs in vLLM's own interpreter. Nothing here changes what a model answers: work is moved to an earlier moment, done beside
other work, or not done twice. Every such change stands alone and falls back to vLLM's own way when the part it builds on
is not there.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from standby.host.guard import arm
from standby.runtime import paging

_ENTRY: Final = ("vllm.entrypoints.launchers.api_server.entry",)
_LAUNCHER: Final = ("vllm.entrypoints.launchers.launcher", *_ENTRY)
_ARGUMENTS: Final = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
_PROCESSOR_FILES: Final = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
_THREADS_VARIABLE: Final = "OMP_NUM_THREADS"


def first_of(names: Sequence[str]) -> ModuleType:
    """Import the first of ``names`` that this version has. Raises ImportError that lists them all."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise  # the module is there, and something that it imports is not
    raise ImportError(f"this vLLM has none of {', '.join(names)}")


def entry() -> ModuleType:
    """Return the module that builds and serves the OpenAI API."""
    return first_of(_ENTRY)


async def run_server(arguments: Any) -> None:
    """Bind, start the engine and serve, until told to end.

    Left out is the handler by which vLLM turns SIGTERM during the start into an exception: EngineCore swallows the signal
    then, and the end takes as long as the step it is in. Without it the API process just ends, and EngineCore with it.
    """
    module = entry()
    if not hasattr(module, "run_server_worker"):
        await module.run_server(arguments)
        return
    importlib.import_module("vllm.utils.system_utils").decorate_logs("APIServer", skip_if_decorated=True)
    address, bound = first_of(_LAUNCHER).setup_server(arguments, reuse_port=False)
    await module.run_server_worker(address, bound, arguments)


class Parser:
    """vLLM's own argument parser, built once: building it takes longer than parsing."""

    _built: Any = None

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Any:
        """Return the checked arguments. Ends the process on unknown ones, as argparse does."""
        found = first_of(_ARGUMENTS)
        if cls._built is None:
            parser_class = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
            cls._built = found.make_arg_parser(parser_class(description="vLLM on standby"))
        parsed = cls._built.parse_args(list(arguments))
        found.validate_parsed_serve_args(parsed)
        return parsed


def configure_logging(arguments: Any) -> None:
    """Let vLLM set up its logs from the arguments, where this version does that apart."""
    configure = getattr(importlib.import_module("vllm.logger"), "configure_logging_from_args", None)
    if configure is not None:
        configure(arguments)


def fork_workers() -> None:
    """Let EngineCore and Worker be forked: spawned, each would import everything again.

    vLLM's CPU platform overwrites the choice in the environment while the configuration is checked, so the function that
    reads it is replaced where it is used. A process that has touched a GPU spawns: its state there does not survive a fork.
    """
    original = getattr(importlib.import_module("vllm.utils.system_utils"), "get_mp_context", None)
    if original is None:
        return

    def get_mp_context() -> Any:
        return original() if accelerator_initialised() else multiprocessing.get_context("fork")

    for name in ("vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor", "vllm.v1.engine.coordinator"):
        module = importlib.import_module(name)
        if getattr(module, "get_mp_context", None) is original:
            vars(module)["get_mp_context"] = get_mp_context


def accelerator_initialised() -> bool:
    """Return whether this process has touched a GPU; asks nothing that would touch one."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def guard_engine_core() -> None:
    """Tie EngineCore to the API process, which vLLM does not do: killed, that would leave an orphan with all the memory.

    Not where EngineCore will be spawned: what a spawned process is to do must be found by name. There the group's end ends it.
    """
    if accelerator_initialised():
        return
    process = importlib.import_module("vllm.v1.engine.core").EngineCoreProc
    original = process.run_engine_core
    parent = os.getpid()

    def run_engine_core(*positional: Any, **named: Any) -> None:
        arm(parent)
        set_threads()
        defer_grammar_tokenizer()
        trim_after_start()
        original(*positional, **named)

    process.run_engine_core = staticmethod(run_engine_core)


def set_threads() -> None:
    """Use as many threads as the environment says: OpenMP reads it when it is loaded, which was before the fork."""
    wanted = os.environ.get(_THREADS_VARIABLE, "")
    if wanted.isdigit() and int(wanted) > 0:
        importlib.import_module("torch").set_num_threads(int(wanted))


def compile_nothing(arguments: Any) -> None:
    """Mean ``--enforce-eager`` on a processor: vLLM itself still compiles small functions there, when first needed.

    A first request that asks for the probabilities of its tokens, or samples by top_p, then waits more than ten seconds for
    a C++ compiler, or fails where there is none. The same functions run as they are written.
    """
    if not arguments.enforce_eager or not importlib.import_module("vllm.platforms").current_platform.is_cpu():
        return
    set_stance = getattr(importlib.import_module("torch").compiler, "set_stance", None)
    if set_stance is not None:
        set_stance("force_eager")


class KernelOverrides:
    """vLLM's replacements for Triton kernels on a CPU: they are found by looking through every module, which takes 0.3 s."""

    _done = False

    @classmethod
    def register(cls) -> None:
        """Register them now, and let the workers' own call of it do nothing."""
        if cls._done:
            return
        platform = importlib.import_module("vllm.platforms").current_platform
        register = getattr(platform, "register_triton_kernel_overrides", None)
        if register is None:
            return
        register()
        setattr(type(platform), "register_triton_kernel_overrides", classmethod(lambda _: None))  # noqa: B010 - a platform class is no type that we know
        cls._done = True


def inspect_models_here() -> None:
    """Learn what a model class can do by looking at it in this process, once it has been imported.

    vLLM asks a new Python process where its own cache is cold (seconds), as some model files touch the GPU when they are
    imported. A class that is there already costs nothing and touches nothing.
    """
    registry = importlib.import_module("vllm.model_executor.models.registry")
    lazy, info = getattr(registry, "_LazyRegisteredModel", None), getattr(registry, "_ModelInfo", None)
    if lazy is None or info is None:
        return
    original = lazy.inspect_model_cls

    def inspect_model_cls(self: Any) -> Any:
        return info.from_model_cls(self.load_model_cls()) if self.module_name in sys.modules else original(self)

    lazy.inspect_model_cls = inspect_model_cls


def trim_after_start() -> None:
    """Give back what reading and packing the weights has freed, once EngineCore has built everything (90 MB of 700)."""
    module = importlib.import_module("vllm.v1.engine.core")
    settle = getattr(module, "freeze_gc_heap", None)
    if settle is None:
        return

    def freeze_gc_heap() -> None:
        settle()
        paging.trim_heap()

    vars(module)["freeze_gc_heap"] = freeze_gc_heap


class _Deferred:
    """A tokenizer that nobody has asked for yet."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.load = load


def defer_grammar_tokenizer() -> None:
    """Let EngineCore load a tokenizer when the first request with a grammar needs it, not while it starts.

    The API process has its own, and most engines never see a grammar: this spares 0.2 s and the tokenizer's memory.
    """
    module = importlib.import_module("vllm.v1.structured_output")
    load, manager = getattr(module, "cached_tokenizer_from_config", None), getattr(module, "StructuredOutputManager", None)
    if load is None or manager is None or hasattr(manager, "tokenizer"):
        return

    def get(self: Any) -> Any:
        held = vars(self)["tokenizer"]
        if isinstance(held, _Deferred):
            held = vars(self)["tokenizer"] = held.load()
        return held

    def keep(self: Any, value: Any) -> None:
        vars(self)["tokenizer"] = value

    manager.tokenizer = property(get, keep)
    vars(module)["cached_tokenizer_from_config"] = lambda *given, **named: _Deferred(lambda: load(*given, **named))


def copy_tokenizer_once() -> None:
    """Begin with one copy of the tokenizer for the threads that render prompts; further ones are made when they are needed.

    vLLM makes two, and with each looks through the whole vocabulary again (0.1 s, with a large one 0.5 s).
    """
    module = importlib.import_module("vllm.renderers.hf")
    make = getattr(module, "maybe_make_thread_pool", None)
    if make is not None:
        vars(module)["maybe_make_thread_pool"] = lambda tokenizer, copies=1: make(tokenizer, min(copies, 1))


def skip_absent_processor(config: Any) -> None:
    """Spare the search for a processor's chat template where the model has no processor: it loads the tokenizer again.

    The conditions are those under which transformers finds no processor class: no such file, no such key, and a
    configuration that stands for none.
    """
    renderer = sys.modules.get("vllm.renderers.hf")
    known = getattr(renderer, "_PROCESSOR_CHAT_TEMPLATES", None)
    model = config.model_config
    folder = Path(str(model.tokenizer))
    if known is None or not folder.is_dir() or _names_processor(folder, model.hf_config):
        return
    code_revision = model.code_revision if model.tokenizer == model.model else None
    known[str(model.tokenizer), model.tokenizer_revision, code_revision, model.trust_remote_code] = None


def _names_processor(folder: Path, hf_config: Any) -> bool:
    mapping = importlib.import_module("transformers.models.auto.processing_auto").PROCESSOR_MAPPING
    if any((folder / name).exists() for name in _PROCESSOR_FILES) or type(hf_config) in mapping:
        return True
    for name in ("tokenizer_config.json", "config.json"):
        path = folder / name
        content = json.loads(path.read_bytes()) if path.exists() else {}
        if "processor_class" in content or "AutoProcessor" in (content.get("auto_map") or {}):
            return True
    return False


def freeze() -> None:
    """Exempt everything that is there from the collector's looks.

    Each full look at 750 MB of imported modules takes 0.2 s, vLLM asks for five of them while it starts, and looking at an
    object copies its page from the zygote.
    """
    gc.collect()
    gc.freeze()
