"""What a zygote does for vLLM before any model is known: import, build what can be built, and look at model classes.

The process stays single-threaded and touches no accelerator: it will be forked.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from standby.runtime.engines import vllm_compat as compat

_ALWAYS: Final = (
    "uvloop",
    "vllm.engine.arg_utils",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.core_client",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.entrypoints.generate.api_router",
)
"""Without these nothing starts: one that is missing is an error."""

_LIKELY: Final = (
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.structured_output",
    "vllm.distributed.elastic_ep.elastic_execute",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.renderers.hf",
    "vllm.renderers.online_renderer",
    "vllm.renderers.online_derenderer",
    "vllm.tokenizers.hf",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.spec_decode.ngram_proposer",
    "vllm.v1.metrics.loggers",
    "vllm.v1.pool.late_interaction",
    "vllm.lora.request",
    "transformers.models.auto.processing_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.tokenization_utils_tokenizers",
    "fastapi.staticfiles",
    "pydantic.v1",
    "prometheus_fastapi_instrumentator",
    "multiprocessing.popen_fork",
    "multiprocessing.resource_tracker",
    "compressed_tensors",
)
_CPU: Final = (
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.utils.cpu_triton_utils",
    "vllm.triton_utils.dispatcher",
)
_MODELS: Final = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3")
"""Architectures whose classes are imported ahead; any other one is imported after the fork."""


def preload() -> None:
    """Import and build. Raises ImportError when vLLM lacks a part without which it cannot start."""
    compat.entry()
    for name in _ALWAYS:
        importlib.import_module(name)
    on_cpu = bool(importlib.import_module("vllm.platforms").current_platform.is_cpu())
    if on_cpu:
        _permit_amx()
        _import(_CPU)
        # Before the rest: looking through the modules stumbles over objects of some that vLLM alone would import later.
        compat.KernelOverrides.register()
    _import(_LIKELY)
    _import(f"vllm.model_executor.models.{name}" for name in _MODELS)
    compat.inspect_models_here()
    _rehearse()


def _import(names: Iterable[str]) -> None:
    """Import those of ``names`` that this version has: any that is missed here is imported after the fork."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _permit_amx() -> None:
    """Ask the kernel for AMX tiles, which a fork inherits: vLLM never asks, and its first use would end the worker (SIGILL)."""
    initialise = getattr(importlib.import_module("torch").cpu, "_init_amx", None)
    if initialise is not None:
        initialise()


def _rehearse() -> None:
    """Do once what every start does the same way, so that its caches and schemas are there."""
    with _model_folder() as folder:
        arguments = compat.Parser.parse(["--model", str(folder), "--uds", str(folder / "none.sock"), "--enforce-eager"])
        compat.configure_logging(arguments)  # a start with the same settings, which are the usual ones, skips it
        with contextlib.suppress(ImportError, AttributeError):
            rules = importlib.import_module("torch._dynamo.trace_rules")
            rules.get_torch_obj_rule_map()
        with contextlib.suppress(ImportError, AttributeError, TypeError):
            importlib.import_module("vllm.entrypoints.launchers.app").build_app(arguments, ("generate",), None)


@contextlib.contextmanager
def _model_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="standby-rehearsal-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
        yield folder
