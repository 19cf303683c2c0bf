"""The way of a container: unpack model.tar.gz, import the libraries, build the model, generate. Run by vLLM's interpreter.

``python coldstart_container_app.py ARCHIVE FOLDER PROMPT`` prints one line of JSON with the moment at which each step ended.
What a container's image and scheduling would cost on top is left out.
"""

from __future__ import annotations

import json
import sys
import tarfile
import time


def main() -> None:
    """Measure one start."""
    archive, folder, prompt = sys.argv[1:4]
    marks: dict[str, float] = {}

    def mark(name: str) -> None:
        marks[name] = time.perf_counter()

    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    mark("unpacked")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    mark("imported")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    mark("built")
    with torch.inference_mode():
        model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=1, do_sample=False)
    mark("first_token")
    print(json.dumps(marks), flush=True)


if __name__ == "__main__":
    main()
