"""The SageMaker SDK v2: ``Model.deploy`` with a serverless config, ``Predictor``, and its clean-up.

It asks STS at AWS's own address whatever the environment says, so role and bucket are given and not looked up.
"""

from __future__ import annotations

import json
import sys

import boto3
from sagemaker.deserializers import JSONDeserializer
from sagemaker.model import Model
from sagemaker.predictor import Predictor
from sagemaker.serializers import JSONSerializer
from sagemaker.serverless import ServerlessInferenceConfig
from sagemaker.session import Session

# Its telemetry would wait for an address on the internet.
QUIET = {"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}


def main(name: str, model: str, role: str, question: str, environment: dict[str, str]) -> None:
    """Deploy, ask whole and streamed, and take it all away."""
    session = Session(boto3.session.Session(), default_bucket="models", sagemaker_config=QUIET)
    made = Model(
        image_uri="standby", model_data=model, role=role, name=name, env=environment, sagemaker_session=session,
        predictor_cls=Predictor,
    )  # fmt: skip
    predictor = made.deploy(
        endpoint_name=name,
        serverless_inference_config=ServerlessInferenceConfig(memory_size_in_mb=1024, max_concurrency=5),
        serializer=JSONSerializer(),
        deserializer=JSONDeserializer(),
        wait=False,
    )
    # By itself it sleeps 30 seconds before its first look.
    session.wait_for_endpoint(name, poll=1)
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24}
    answer = predictor.predict(body)
    streamed = b"".join(predictor.predict_stream({**body, "stream": True}, iterator=parts))
    told = {
        "answer": answer["choices"][0]["message"]["content"],
        "stream_ends": streamed.endswith(b"data: [DONE]\n\n"),
    }
    predictor.delete_endpoint()
    made.delete_model()
    print(json.dumps(told))


def parts(stream: list[dict[str, dict[str, bytes]]]) -> list[bytes]:
    """Return the bytes of each event."""
    return [event["PayloadPart"]["Bytes"] for event in stream]


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
