"""The tokenizer inside a GGUF as one of the package ``tokenizers``, where it is a byte-level BPE.

llama.cpp names the way in which text is split before the merges (``tokenizer.ggml.pre``); only ways whose equivalent is
here make a tokenizer, since another split counts other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from standby.artifacts.gguf import ReadAt, parse_gguf
from standby.artifacts.gguf_header import KeptValue

TOKENS: Final = "tokenizer.ggml.tokens"
MERGES: Final = "tokenizer.ggml.merges"
TOKEN_TYPES: Final = "tokenizer.ggml.token_type"  # noqa: S105 # a key of the file
KEPT: Final = frozenset({TOKENS, MERGES, TOKEN_TYPES})
# Of the GGUF specification's token types: tokens that are taken from the text as a whole, before it is split.
CONTROL: Final = 3
USER_DEFINED: Final = 4

# Whether each digit is a token of its own. Everything else is split as GPT-2 does.
_SPLITS_DIGITS: Final[Mapping[str, bool]] = MappingProxyType({"gpt-2": False, "smollm": True})


def gguf_tokenizer(read: ReadAt, size: int) -> Tokenizer | None:
    """Return the tokenizer in the header of the GGUF of ``size`` bytes that ``read`` reads.

    None where it is none that can be made here. Raises UnsupportedArtifact for a broken header.
    """
    values = parse_gguf(read, size, keep=KEPT).values
    split = values.get("tokenizer.ggml.pre")
    if values.get("tokenizer.ggml.model") != "gpt2" or split not in _SPLITS_DIGITS:
        return None
    tokens, merges = _strings(values, TOKENS), _strings(values, MERGES)
    types = values.get(TOKEN_TYPES)
    kinds = types if isinstance(types, tuple) else ()
    special = [token for token, kind in zip(tokens, kinds, strict=False) if kind in (CONTROL, USER_DEFINED)]
    return bpe_tokenizer(tokens, merges, special, split=str(split)) if tokens and merges else None


def bpe_tokenizer(tokens: Sequence[str], merges: Sequence[str], special: Sequence[str], *, split: str) -> Tokenizer:
    """Return a byte-level BPE over ``tokens`` (by number) and ``merges`` (``first second``, the earliest first).

    Raises KeyError where ``split`` is not known.
    """
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=pairs))
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if _SPLITS_DIGITS[split] else words
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _strings(values: Mapping[str, KeptValue], name: str) -> tuple[str, ...]:
    found = values.get(name)
    return tuple(str(item) for item in found) if isinstance(found, tuple) else ()
