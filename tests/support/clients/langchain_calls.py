"""langchain-aws: the language model and the chat model of a SageMaker endpoint, whole and streamed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from langchain_aws.chat_models.sagemaker_endpoint import ChatModelContentHandler, ChatSagemakerEndpoint
from langchain_aws.llms.sagemaker_endpoint import LLMContentHandler, SagemakerEndpoint
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage


class Text(LLMContentHandler):  # type: ignore[misc] # installed elsewhere
    """``inputs`` in, ``generated_text`` out."""

    def transform_input(self, prompt: str, model_kwargs: dict[str, Any]) -> bytes:
        """Write the request."""
        return json.dumps({"inputs": prompt, "parameters": model_kwargs}).encode()

    def transform_output(self, output: Any) -> str:
        """Read the answer."""
        return str(json.loads(output.read())["generated_text"])


class Chat(ChatModelContentHandler):  # type: ignore[misc] # installed elsewhere
    """``messages`` in, OpenAI's answer out, event by event where it streams."""

    def transform_input(self, prompt: Sequence[dict[str, str]], model_kwargs: dict[str, Any]) -> bytes:
        """Write the request."""
        return json.dumps({"messages": list(prompt), **model_kwargs}).encode()

    def transform_output(self, output: Any) -> BaseMessage:
        """Read an answer, or a piece of a stream."""
        if hasattr(output, "read"):
            return AIMessage(json.loads(output.read())["choices"][0]["message"]["content"])
        events = [line[5:] for line in output.decode().splitlines() if line.startswith("data:") and "[DONE]" not in line]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
        return AIMessageChunk("".join(choice["delta"].get("content") or "" for choice in choices))


def main(url: str, endpoint: str, question: str) -> None:
    """Ask by both models."""
    shared: dict[str, Any] = {"endpoint_name": endpoint, "region_name": "us-east-1"}
    settings = {"temperature": 0, "max_tokens": 24}
    chat = ChatSagemakerEndpoint(**shared, base_url=url, content_handler=Chat(), model_kwargs=settings)
    streaming = ChatSagemakerEndpoint(
        **shared, base_url=url, content_handler=Chat(), model_kwargs={**settings, "stream": True}, streaming=True
    )
    text = SagemakerEndpoint(
        **shared, endpoint_url=url, content_handler=Text(), model_kwargs={"max_new_tokens": 6, "do_sample": False}
    )
    pieces = [str(piece.content) for piece in streaming.stream(question)]
    told = {
        "chat": chat.invoke(question).content,
        "streamed": "".join(pieces),
        "pieces": len(pieces),
        "text": text.invoke("The capital of France is"),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
