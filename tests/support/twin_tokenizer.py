"""The tokenizer inside a GGUF as the files of the Hugging Face layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf

from standby.artifacts.bpe import bpe_tokenizer


def write_tokenizer(reader: gguf.GGUFReader, into: Path, *, context_length: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``, with the chat template, into ``into``.

    Only for the byte-level BPE that llama.cpp calls ``gpt2`` with the splitting that it calls ``smollm``.
    """

    def value(key: str) -> Any:
        return reader.fields[f"tokenizer.{key}"].contents()

    kind = value("ggml.model"), value("ggml.pre")
    assert kind == ("gpt2", "smollm"), f"the twin knows no tokenizer {kind}"
    tokens: Sequence[str] = value("ggml.tokens")
    special = [
        token
        for token, kind in zip(tokens, value("ggml.token_type"), strict=True)
        if kind in {gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED}
    ]
    tokenizer = bpe_tokenizer(tokens, value("ggml.merges"), special, split=value("ggml.pre"))
    tokenizer.save(str(into / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        "bos_token": tokens[value("ggml.bos_token_id")],
        "eos_token": tokens[value("ggml.eos_token_id")],
        "unk_token": tokens[value("ggml.unknown_token_id")],
        "pad_token": tokens[value("ggml.padding_token_id")],
        "chat_template": value("chat_template"),
    }
    (into / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
