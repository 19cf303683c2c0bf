"""The SageMaker SDK v3 (``sagemaker-core``): resources, invocations, and its token generator.

It writes a serverless config with a member that AWS's own model does not know, and its streaming invocation fails on boto3's
event stream; so the config is made by boto3, and nothing is streamed.
"""

from __future__ import annotations

import json
import sys

import boto3
from sagemaker.core.resources import Endpoint, Model
from sagemaker.core.shapes import ContainerDefinition
from sagemaker.core.token_generator import generate_token


def main(name: str, model: str, role: str, question: str, environment: dict[str, str]) -> None:
    """Create, wait, ask, list, delete."""
    container = ContainerDefinition(image="standby", model_data_url=model, environment=environment)
    made = Model.create(model_name=name, primary_container=container, execution_role_arn=role)
    variant = {
        "VariantName": "AllTraffic",
        "ModelName": name,
        "ServerlessConfig": {"MemorySizeInMB": 1024, "MaxConcurrency": 5},
    }
    boto3.client("sagemaker").create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
    endpoint = Endpoint.create(endpoint_name=name, endpoint_config_name=name)
    endpoint.wait_for_status("InService")
    body = json.dumps({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24})
    answer = json.loads(endpoint.invoke(body=body, content_type="application/json").body.read())
    told = {
        "answer": answer["choices"][0]["message"]["content"],
        "status": endpoint.endpoint_status,
        "listed": [one.endpoint_name for one in Endpoint.get_all(name_contains=name)],
        "model": made.get_name(),
        "token": generate_token(region="us-east-1"),
    }
    endpoint.delete()
    endpoint.wait_for_delete()
    made.delete()
    print(json.dumps(told))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
