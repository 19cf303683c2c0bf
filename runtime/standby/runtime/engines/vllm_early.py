"""Starts EngineCore before the API process loads its tokenizer and builds its application, instead of after.

vLLM does both one after the other: the engine's process is made in the middle of the client's construction, when the
tokenizer is there, and the application is built when the engine is ready. Here the engine's process is made first, and
the rest is done while it loads weights. What is done is the same, by the same functions; where this version of vLLM lacks
one of them, or the deployment is of a kind that has not been tried, vLLM's own order is kept.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from standby.runtime.engines import vllm_compat as compat

_TASKS: Final = ("generate",)
_NEEDED: Final = ("get_engine_zmq_bind_addresses", "launch_core_engines", "EngineZmqAddresses")


def overlap(arguments: Any) -> None:
    """Have the next engine client of this process made in the faster order."""
    client_class = importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM
    original = client_class.from_vllm_config

    def from_vllm_config(_: type, vllm_config: Any, *positional: Any, **named: Any) -> Any:
        compat.skip_absent_processor(vllm_config)
        compat.copy_tokenizer_once()
        with _early_engine(vllm_config, log_stats=not named.get("disable_log_stats", False)) as early:
            if early:
                _build_application(arguments, vllm_config.model_config)
            return original(vllm_config, *positional, **named)

    client_class.from_vllm_config = classmethod(from_vllm_config)


@contextlib.contextmanager
def _early_engine(config: Any, *, log_stats: bool) -> Iterator[bool]:
    """Make the engine's process now and hand it to the client that asks for one within; yield whether that was possible."""
    module = importlib.import_module("vllm.v1.engine.core_client")
    if not _usual(config) or not all(hasattr(module, name) for name in _NEEDED):
        yield False
        return
    bound = module.get_engine_zmq_bind_addresses(config)
    if not all(str(address).startswith("ipc://") for address in (*bound.inputs, *bound.outputs)):
        yield False  # the port of another kind of address is known only once its socket is bound
        return
    executor = importlib.import_module("vllm.v1.executor.abstract").Executor.get_class(config)
    addresses = module.EngineZmqAddresses(inputs=list(bound.inputs), outputs=list(bound.outputs))
    engine = _StartedEngine(module.launch_core_engines(config, executor, log_stats, addresses))
    with (
        _replaced(module, "get_engine_zmq_bind_addresses", lambda *_, **__: bound),
        _replaced(module, "launch_core_engines", lambda *_, **__: engine.handed_over()),
    ):
        yield True


def _usual(config: Any) -> bool:
    """Return whether this is one engine for text: what a client does before it makes others may change their configuration."""
    parallel, model = config.parallel_config, config.model_config
    return parallel.data_parallel_size == 1 and not model.is_multimodal_model and model.runner_type == "generate"


class _StartedEngine:
    """An engine's process whose greeting is answered by a thread of its own."""

    def __init__(self, context: contextlib.AbstractContextManager[Any]) -> None:
        self._context = context
        self._launch = context.__enter__()  # forks here, while this process has one thread
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, name="engine-greeting", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def handed_over(self) -> Iterator[Any]:
        """Yield the launch; at the end wait for the engine. Raises what waiting for it raised."""
        yield self._launch
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        try:
            self._context.__exit__(None, None, None)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for the engine
            self._error = error


def _build_application(arguments: Any, model_config: Any) -> None:
    """Build the web application now; the server takes it if it asks for exactly this one, else it builds its own."""
    entry = compat.entry()
    build: Callable[..., Any] | None = getattr(entry, "build_app", None)
    if build is None:
        return
    built = build(arguments, _TASKS, model_config)

    def build_app(args: Any, tasks: Any = None, model: Any = None) -> Any:
        same = args is arguments and tuple(tasks or ()) == _TASKS and model is model_config
        return built if same else build(args, tasks, model)

    vars(entry)["build_app"] = build_app


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)
