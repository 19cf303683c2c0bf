"""The OpenAI client on an endpoint's own route, with a token minted offline from an access key as SageMaker's generator does.

``python openai_minted.py '{"url": …, "endpoint": …, "question": …}'``; keys are in the environment, as AWS's tools read them.
"""

from __future__ import annotations

import base64
import json
import sys

import openai
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.session import Session
from openai.types.chat import ChatCompletionMessageParam

HOST = "sagemaker.amazonaws.com"


def minted(expires_s: int = 3600) -> str:
    """Return a bearer token; nothing is asked for it."""
    credentials = Session().get_credentials().get_frozen_credentials()
    request = AWSRequest("POST", f"https://{HOST}/", {"host": HOST}, params={"Action": "CallWithBearerToken"})
    SigV4QueryAuth(credentials, "sagemaker", "us-east-1", expires=expires_s).add_auth(request)
    return "sagemaker-api-key-" + base64.b64encode(f"{request.url.removeprefix('https://')}&Version=1".encode()).decode()


def main(url: str, endpoint: str, question: str) -> None:
    """Ask once whole and once streamed."""
    client = openai.OpenAI(base_url=f"{url}/endpoints/{endpoint}/openai/v1", api_key=minted())
    create = client.chat.completions.create
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    whole = create(model="", messages=messages, temperature=0, max_tokens=24)
    stream = create(model="", messages=messages, temperature=0, max_tokens=24, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    print(json.dumps({"whole": whole.choices[0].message.content, "pieces": len(pieces), "streamed": "".join(pieces)}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
