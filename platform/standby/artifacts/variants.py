"""Other weights of the same model, e.g. at four bits: the one check that they are. Pure."""

from __future__ import annotations

import re
from typing import Final

from standby.domain.model import Manifest

_PLAIN: Final = re.compile(r"[^a-z0-9]")
_TASK: Final = re.compile(r"(for(causallm|conditionalgeneration)|lmheadmodel|model)$")
_LETTERS: Final = re.compile(r"[a-z]*")
# Where a GGUF calls an architecture by another name than a config.json.
_GGUF_NAMES: Final = {"mistral": "llama", "mixtral": "llama", "cohere": "commandr", "deepseekv": "deepseek"}


def same_model(base: Manifest, other: Manifest) -> str | None:
    """Return why ``other`` cannot be weights of the same model as ``base``, or None.

    Compared is what a caller would notice: architecture, context length, tokenizer and chat template. What one of the
    two does not say counts as equal.
    """
    mine, its = base.facts, other.facts
    if mine.architecture and its.architecture and _name(base) != _name(other):
        across = base.format != other.format
        if not across or _family(base) != _family(other):
            return f"the architecture is {its.architecture!r} instead of {mine.architecture!r}"
    if mine.context_length and its.context_length and mine.context_length != its.context_length:
        return f"the context length is {its.context_length} instead of {mine.context_length} tokens"
    if mine.has_tokenizer != its.has_tokenizer:
        return f"it has {_a(its.has_tokenizer)} tokenizer, the registered model has {_a(mine.has_tokenizer)} tokenizer"
    if mine.has_chat_template != its.has_chat_template:
        there, here = _a(its.has_chat_template), _a(mine.has_chat_template)
        return f"it has {there} chat template, the registered model has {here} chat template"
    return None


def _name(manifest: Manifest) -> str:
    """``LlamaForCausalLM`` of a config.json and ``llama`` of a GGUF header are the same architecture."""
    return _TASK.sub("", _PLAIN.sub("", manifest.facts.architecture.lower()))


def _family(manifest: Manifest) -> str:
    """The name without its generation: between formats, ``deepseek2`` may be called ``DeepseekV3ForCausalLM``."""
    found = _LETTERS.match(_name(manifest))
    letters = found.group() if found else ""
    return _GGUF_NAMES.get(letters, letters)


def _a(there: bool) -> str:
    return "a" if there else "no"
