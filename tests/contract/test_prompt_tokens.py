"""The gateway's counts of a prompt's tokens against what real engines say that they have read."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from standby.artifacts.bpe import gguf_tokenizer
from standby.gateway.tokens import count
from support.engine_case import Served
from support.engine_client import client
from support.fake_engine_spec import SERVED_NAME
from support.real_model import real_model_path

pytestmark = pytest.mark.asyncio(loop_scope="session")
PROMPTS = (
    "Name the capital of France.",
    "12345 apples, 3.14159 - don't!\n\n\tdef f(x):\n        return x ** 2\n",
    "Über die Brücke gingen 7 Zwerge… 東京タワーは333メートルです。 🙂🙃",
    "A longer text. " * 60,
)


def tokenizer_of(served: Served) -> Tokenizer:
    """Return the tokenizer in the real model's file; skips where no real engine serves it."""
    if not served.case.real:
        pytest.skip("no tokenizer is behind it")
    content = real_model_path().read_bytes()
    tokenizer = gguf_tokenizer(lambda offset, length: content[offset : offset + length], len(content))
    assert tokenizer is not None
    return tokenizer


async def test_a_text_is_counted_as_the_engine_counts_it(served: Served) -> None:
    """Of ``/v1/completions``; this model has no token that begins every text, so that both are the same."""
    tokenizer = tokenizer_of(served)
    async with client(served.handle) as http:
        for prompt in PROMPTS:
            body = {"model": SERVED_NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0}
            answer = await http.post("/v1/completions", json=body)
            assert count(tokenizer, prompt).tokens == answer.json()["usage"]["prompt_tokens"]


async def test_a_chat_has_the_words_of_its_template_beside_its_text(served: Served) -> None:
    """Which are not counted: the template's default system message and its marks, the same few tokens for each question."""
    tokenizer = tokenizer_of(served)
    beyond = set()
    async with client(served.handle) as http:
        for prompt in PROMPTS[:2]:
            body = {"model": SERVED_NAME, "messages": [{"role": "user", "content": prompt.strip()}], "max_tokens": 1}
            answer = await http.post("/v1/chat/completions", json=body)
            beyond.add(answer.json()["usage"]["prompt_tokens"] - count(tokenizer, prompt.strip()).tokens)
    assert len(beyond) == 1
    assert 0 < beyond.pop() < 40
