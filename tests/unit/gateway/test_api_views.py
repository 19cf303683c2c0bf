"""How records are shown: rungs, states in words, and no secrets. Also the bounded inbox of an event follower."""

from __future__ import annotations

import json

import pytest

from standby.domain.durations import FOREVER
from standby.domain.endpoint import NO_ZYGOTE, EndpointStatus, Failure, ScalePolicy
from standby.domain.engine_choice import choose_engine
from standby.domain.errors import InvalidInput
from standby.domain.events import ComponentNotice, EndpointChanged
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind, ModelFormat
from standby.domain.node import Device, DeviceKind, Zygote
from standby.domain.serving import PREFERENCE
from standby.gateway.api.events import Inbox
from standby.gateway.api.responses import plain
from standby.gateway.api.views import endpoint_view, node_view
from support.builders import TENANT, a_config, a_manifest, an_endpoint, an_instance
from support.cluster import make_node


def test_an_endpoint_without_instances_is_cold() -> None:
    view = plain(endpoint_view(an_endpoint(), a_config(), [], now=10.0))

    assert view["rung"] == "cold"
    assert view["state"] == "cold: nothing runs; the next request starts it"
    assert view["variants"][0]["model"] == "m"


def test_the_rung_is_the_highest_and_the_climbing_one_speaks() -> None:
    """Of two instances at one rung, the one that is being woken is what the caller waits for."""
    asleep = an_instance(id="i1", state=InstanceState.ASLEEP)
    waking = an_instance(id="i2", state=InstanceState.WAKING, progress=0.5)

    view = plain(endpoint_view(an_endpoint(), a_config(), [asleep, waking], now=10.0))

    assert view["rung"] == "asleep"
    assert view["state"] == "waking, 50% (and 1 more)"


def test_a_zygote_says_what_forks_it_and_how_long_that_took_here() -> None:
    resting = an_instance(state=InstanceState.ZYGOTE, engine=EngineKind.VLLM, rung_since=4.0)
    measured = make_node(costs={resting.model_digest: {Rung.ZYGOTE: 7.2, Rung.STAGED: 43.4}})
    forks = "zygote: a pre-imported vllm process forks it"

    view = plain(endpoint_view(an_endpoint(), a_config(), [resting], now=10.0, nodes={"n1": measured}))
    (instance,) = view["instances"]
    elsewhere = plain(endpoint_view(an_endpoint(), a_config(), [resting], now=10.0, nodes={"n2": measured}))

    assert (view["rung"], view["state"]) == ("zygote", f"{forks} (7.2 s until ready), for 6.0 s")
    assert (instance["words"], instance["climb_s"], instance["engine"]) == (view["state"], 7.2, "vllm")
    assert (elsewhere["state"], elsewhere["instances"][0]["climb_s"]) == (f"{forks}, for 6.0 s", None)


def test_what_rests_lower_than_it_should_says_why() -> None:
    lacks = Failure(reason="the zygote exited with code 1", code=NO_ZYGOTE, next_retry_at=14.0)
    view = endpoint_view(an_endpoint(), None, [an_instance(state=InstanceState.STAGED, failure=lacks)], now=10.0)

    assert view["state"] == (
        "staged: verified bytes on the node's disk, for 9.0 s; the zygote exited with code 1; next try in 4.0 s"
    )


def test_a_node_shows_what_it_computes_on_and_what_forks() -> None:
    node = make_node(
        devices=(Device(id="GPU-1", kind=DeviceKind.GPU, memory_total=100, memory_used=30, cordoned="Xid 79"),),
        zygotes={EngineKind.VLLM: Zygote(state="ready", forks=3)},
        engine_devices={EngineKind.VLLM: DeviceKind.GPU},
        isolation="cgroup v2",
    )

    view = plain(node_view(node, (), {}, 0.0))

    assert [(d["id"], d["kind"], d["memory_free"], d["cordoned"]) for d in view["devices"]] == [("GPU-1", "gpu", 70, "Xid 79")]
    assert (view["zygotes"]["vllm"]["forks"], view["engine_devices"], view["isolation"]) == (3, {"vllm": "gpu"}, "cgroup v2")


def test_a_failure_is_told_with_its_next_try() -> None:
    failure = Failure(reason="the engine ended with exit code 1", next_retry_at=14.0)
    endpoint = an_endpoint(status=EndpointStatus.FAILED, failure=failure)

    assert (
        endpoint_view(endpoint, None, [], now=10.0)["state"] == "failed: the engine ended with exit code 1; next try in 4.0 s"
    )


def test_infinity_becomes_a_word_that_json_knows() -> None:
    policy = plain(a_config(ScalePolicy(keep_staged=FOREVER)))["variants"][0]["policy"]

    assert policy["keep_staged"] == "forever"
    assert json.loads(json.dumps(policy, allow_nan=False)) == policy


def test_the_first_engine_that_can_is_chosen() -> None:
    gguf = a_manifest(refusals={EngineKind.VLLM: "it reads no GGUF", EngineKind.TENSORRT_LLM: "nor does it"})
    other = a_manifest(format=ModelFormat.SAFETENSORS, refusals={EngineKind.LLAMA_CPP: "no", EngineKind.VLLM: "mlx"})
    nobody = a_manifest(format=ModelFormat.SAFETENSORS, refusals=dict.fromkeys(PREFERENCE, "no tokenizer"))

    assert choose_engine(None, gguf) is EngineKind.LLAMA_CPP
    assert choose_engine(None, other) is EngineKind.TENSORRT_LLM
    assert choose_engine(EngineKind.FAKE, nobody) is EngineKind.FAKE
    assert choose_engine(None, nobody) in nobody.refusals
    with pytest.raises(InvalidInput, match="'vllm' cannot serve this model: it reads no GGUF; choose one of: llama_cpp"):
        choose_engine(EngineKind.VLLM, gguf)
    with pytest.raises(InvalidInput, match="no tokenizer; no engine can serve this model as it is"):
        choose_engine(EngineKind.VLLM, nobody)


def changed(number: int, tenant: str = TENANT, endpoint: str = "e") -> EndpointChanged:
    return EndpointChanged(id=str(number), at=1.0, source="t", tenant=tenant, endpoint=endpoint, status="InService")


async def test_an_inbox_takes_its_tenants_events_only() -> None:
    inbox = Inbox(TENANT, "e", everything_of_the_platform=False)
    inbox.put(changed(1, tenant="999999999999"))
    inbox.put(changed(2, endpoint="other"))
    inbox.put(ComponentNotice(id="3", at=1.0, source="t", message="a node started"))
    inbox.put(changed(4))

    assert str(await inbox.get()).startswith("id: 4\nevent: endpoint\ndata: {")


async def test_a_slow_reader_loses_the_oldest_events_and_is_told() -> None:
    inbox = Inbox(TENANT, "", everything_of_the_platform=True, limit=2)
    for number in range(5):
        inbox.put(changed(number))

    assert str(await inbox.get()).startswith(": 3 events lost\nid: 3\n")
    assert str(await inbox.get()).startswith("id: 4\n")
