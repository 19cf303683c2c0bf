"""One of the clients of ``bench_control``: boto3 as it is, one call after the other, for some seconds.

``python control_load.py '{"url": …, "name": …, "model": …, "seconds": …, "begin": …}'``; keys are in the environment. Prints
as one line of JSON the milliseconds of each call by operation, and the processor's seconds for all of them.

One round: a model without an artifact made, described, taken away; a config and an endpoint made, the endpoint described
six times and listed twice, tags added and listed, config described; endpoint and config taken away. 19 calls, 7 of which
write.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config

ROLE = "arn:aws:iam::000000000000:role/anything"


class Meter:
    """Takes the time of each call."""

    def __init__(self, url: str) -> None:
        config = Config(retries={"total_max_attempts": 1})
        self._client = boto3.client("sagemaker", region_name="us-east-1", endpoint_url=url, config=config)
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    def __call__(self, operation: str, **request: Any) -> Any:
        """Make one call."""
        call: Callable[..., Any] = getattr(self._client, operation)
        began = time.perf_counter()
        answer = call(**request)
        self.times[operation].append((time.perf_counter() - began) * 1000)
        return answer


def container(model: str | None = None) -> dict[str, Any]:
    """What CreateModel takes; without an artifact where the store is not what is measured."""
    source = {} if model is None else {"ModelDataUrl": model}
    return {"Image": "standby", "Environment": {"STANDBY_ENGINE": "fake"}, **source}


def one_round(meter: Meter, base: str, name: str) -> None:
    """Carry out the round described above; ``base`` is a model that stays."""
    meter("create_model", ModelName=name, PrimaryContainer=container(), ExecutionRoleArn=ROLE)
    meter("describe_model", ModelName=name)
    variant = {
        "VariantName": "AllTraffic",
        "ModelName": base,
        "ServerlessConfig": {"MemorySizeInMB": 1024, "MaxConcurrency": 5},
    }
    meter("create_endpoint_config", EndpointConfigName=name, ProductionVariants=[variant])
    made = meter("create_endpoint", EndpointName=name, EndpointConfigName=name)
    for number in range(6):
        told = meter("describe_endpoint", EndpointName=name)
        assert told["EndpointStatus"] == "InService", told
        if number % 3 == 0:
            meter("list_endpoints", MaxResults=10)
    meter("add_tags", ResourceArn=made["EndpointArn"], Tags=[{"Key": "a", "Value": "b"}])
    meter("list_tags", ResourceArn=made["EndpointArn"])
    meter("describe_endpoint_config", EndpointConfigName=name)
    meter("delete_endpoint", EndpointName=name)
    meter("delete_endpoint_config", EndpointConfigName=name)
    meter("delete_model", ModelName=name)


def main(url: str, name: str, model: str, seconds: float, begin: float) -> None:
    """Prepare, wait until ``begin`` (seconds since the epoch), make rounds for ``seconds``."""
    meter = Meter(url)
    base = f"{name}-base"
    meter("create_model", ModelName=base, PrimaryContainer=container(model), ExecutionRoleArn=ROLE)
    one_round(meter, base, f"{name}-warm")
    meter.times.clear()
    time.sleep(max(0.0, begin - time.time()))
    end, rounds = time.perf_counter() + seconds, 0
    began, processor = time.perf_counter(), time.process_time()
    while time.perf_counter() < end:
        one_round(meter, base, f"{name}-{rounds}")
        rounds += 1
    took, processor = time.perf_counter() - began, time.process_time() - processor
    print(json.dumps({"seconds": took, "processor": processor, "times": meter.times}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
