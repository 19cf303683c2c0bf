"""Asks the twin a question through PyTorch: ``python -m support.twin_proof FOLDER``. A child of ``bench_load``."""

from __future__ import annotations

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION = "Name the capital of France."
ANSWER = "The capital of France is Paris."


def main() -> None:
    """End with an error unless the answer, the likeliest token each time, is the right one."""
    folder = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    asked = [{"role": "user", "content": QUESTION}]
    tokens = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**tokens, do_sample=False, max_new_tokens=20)[0][tokens["input_ids"].shape[1] :]
    said = tokenizer.decode(answer, skip_special_tokens=True)
    if said != ANSWER:
        raise SystemExit(f"the twin is wrong: {QUESTION!r} was answered with {said!r}")


if __name__ == "__main__":
    main()
