"""LiteLLM's two SageMaker providers; ``sagemaker_base_url`` replaces the whole address, so that it names the operation."""

from __future__ import annotations

import json
import sys

import litellm


def main(url: str, endpoint: str, question: str) -> None:
    """Ask by ``sagemaker_chat/``, whole and streamed, and by ``sagemaker/``."""
    base = f"{url}/endpoints/{endpoint}"
    messages = [{"role": "user", "content": question}]
    asked = {"messages": messages, "temperature": 0, "max_tokens": 24, "num_retries": 0}
    chat = litellm.completion(f"sagemaker_chat/{endpoint}", sagemaker_base_url=f"{base}/invocations", **asked)
    stream = litellm.completion(
        f"sagemaker_chat/{endpoint}", sagemaker_base_url=f"{base}/invocations-response-stream", stream=True, **asked
    )
    chunks = list(stream)
    plain = litellm.completion(
        f"sagemaker/{endpoint}", sagemaker_base_url=f"{base}/invocations", messages=messages, max_tokens=6, temperature=0.01
    )
    told = {
        "chat": chat.choices[0].message.content,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "finish_reason": chunks[-1].choices[0].finish_reason,
        "plain": plain.choices[0].message.content,
    }
    try:
        litellm.completion(f"sagemaker_chat/{endpoint}", sagemaker_base_url=f"{url}/endpoints/nowhere/invocations", **asked)
    except litellm.exceptions.BadRequestError as error:
        told["missing"] = str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
