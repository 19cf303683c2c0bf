"""A variant with several engines: each has its own demand, bounds and rungs, and one that fails takes no other along."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from standby.controller.asked import Bucket, EndpointDemand, together
from standby.controller.placement import memory_need
from standby.controller.served import served
from standby.domain.endpoint import Backend, EndpointStatus, ScalePolicy, Variant
from standby.domain.model import EngineKind, ModelFormat
from standby.domain.serving import model_of_part, parts_of
from support.cluster import GIB, MIB, TENANT, Cluster, Slot, make_model

pytestmark = pytest.mark.decision

FAST = Backend(name="fast", engine=EngineKind.FAKE)
LONG = Backend(name="long", engine=EngineKind.FAKE, engine_options={"tokens": 9})


def hybrid(*backends: Backend, name: str = "v", model: str = "m", limit: int | None = None, **policy: Any) -> Variant:
    return Variant(
        name=name,
        model=model,
        concurrency_limit=limit,
        backends=backends or (FAST, LONG),
        policy=ScalePolicy.model_validate(policy),
    )


def started(*variants: Variant, capacity: int = 8 * GIB) -> Cluster:
    cluster = Cluster()
    cluster.add_node(capacity=capacity)
    cluster.add_endpoint("e", variants=variants or (hybrid(),))
    cluster.decide()
    return cluster


def of(cluster: Cluster, backend: str) -> list[Slot]:
    return [slot for slot in cluster.slots.values() if slot.assignment.backend == backend]


def states(cluster: Cluster, backend: str) -> list[str]:
    return sorted("new" if slot.seen is None else slot.seen.record.state.value for slot in of(cluster, backend))


def failure(cluster: Cluster) -> Any:
    return cluster.endpoints[f"{TENANT}.e"][0].failure


# ---- demand --------------------------------------------------------------------------------------------------


def test_at_zero_each_backend_wakes_for_its_own_demand() -> None:
    cluster = started()
    cluster.ask(variant="v", backend="long", queued=3)
    cluster.run_until(1003.0)
    assert (states(cluster, "fast"), states(cluster, "long")) == ([], ["ready"])
    cluster.ask(variant="v", backend="fast", queued=1)
    cluster.run_until(1006.0)
    assert (states(cluster, "fast"), states(cluster, "long")) == (["ready"], ["ready"])
    (long,) = of(cluster, "long")
    assert long.assignment.model.engine_options == {"tokens": 9}


@pytest.mark.parametrize("variant", ["", "v"])
def test_a_gateway_that_tells_no_backend_asks_for_the_preferred_one(variant: str) -> None:
    cluster = started()
    cluster.ask(variant=variant, queued=2)
    cluster.run_until(1003.0)
    assert (states(cluster, "fast"), states(cluster, "long")) == (["ready"], [])


def test_one_backends_load_does_not_keep_the_other_awake_nor_scale_it() -> None:
    cluster = started(hybrid(keep_ready=10, slots=2, max_instances=3))
    for backend in ("fast", "long"):
        cluster.ask(variant="v", backend=backend, queued=1)
    cluster.run_until(1003.0)
    cluster.ask(variant="v", backend="fast")
    cluster.ask(variant="v", backend="long", in_flight=6)
    cluster.run_until(1030.0)
    assert states(cluster, "fast") == ["asleep"]
    assert states(cluster, "long") == ["ready"] * 3


def test_beside_another_variant_demand_stays_with_its_own() -> None:
    cluster = started(hybrid(), hybrid(name="w", model="m2"))
    cluster.ask(variant="w", backend="long", queued=1)
    cluster.run_until(1003.0)
    assert [(slot.assignment.variant, slot.assignment.backend) for slot in cluster.slots.values()] == [("w", "long")]


def test_bounds_are_each_backends_own() -> None:
    """What the variant keeps ready is of the preferred one."""
    several = FAST.model_copy(update={"slots": 1, "max_instances": 2}), LONG.model_copy(update={"min_ready": 2, "slots": 8})
    cluster = started(hybrid(*several, min_ready=1, max_instances=1))
    cluster.run_until(1003.0)
    assert (states(cluster, "fast"), states(cluster, "long")) == (["ready"], ["ready"] * 2)
    cluster.ask(variant="v", backend="fast", in_flight=9)
    cluster.run_until(1030.0)
    assert (states(cluster, "fast"), states(cluster, "long")) == (["ready"] * 2, ["ready"] * 2)
    assert {slot.assignment.slots for slot in of(cluster, "fast")} == {1}
    assert {slot.assignment.slots for slot in of(cluster, "long")} == {8}


def test_all_doors_of_a_variant_together_keep_its_limit() -> None:
    cluster = started(hybrid(limit=5, slots=4))
    for backend in ("fast", "long"):
        cluster.ask(variant="v", backend=backend, queued=1)
    cluster.run_until(1010.0)
    assert sorted(slot.assignment.door_slots for slot in cluster.slots.values()) == [2, 3]


def test_two_backends_of_one_engine_are_not_taken_for_each_other() -> None:
    twin = Backend(name="twin", engine=EngineKind.FAKE)
    cluster = started(hybrid(FAST, twin))
    cluster.ask(variant="v", backend="twin", queued=1)
    cluster.run_until(1003.0)
    fast, other = served(cluster.view().endpoints[f"{TENANT}.e"])
    assert fast.version == other.version
    (placed,) = cluster.view().endpoints[f"{TENANT}.e"].placed
    assert (fast.has(placed, 1), other.has(placed, 1)) == (False, True)


# ---- failures ------------------------------------------------------------------------------------------------


def test_one_backend_that_does_not_start_is_told_while_another_serves() -> None:
    cluster = started()
    cluster.fails = {"long"}
    for backend in ("fast", "long"):
        cluster.ask(variant="v", backend=backend, queued=1)
    cluster.run_until(1003.0)
    assert cluster.status_of() is EndpointStatus.IN_SERVICE
    assert (failure(cluster).variant, failure(cluster).backend, failure(cluster).reason) == (
        "v",
        "long",
        "engine exited with code 1",
    )
    cluster.fails = set()
    cluster.run_until(1040.0)
    assert (failure(cluster), states(cluster, "long")) == (None, ["ready"])


def test_an_endpoint_is_failed_only_when_no_backend_can_serve() -> None:
    cluster = started()
    cluster.fails = {"fast", "long"}
    cluster.ask(variant="v", backend="fast", queued=1)
    cluster.run_until(1003.0)
    assert (cluster.status_of(), failure(cluster).backend) == (EndpointStatus.IN_SERVICE, "fast")
    cluster.ask(variant="v", backend="long", queued=1)
    cluster.run_until(1006.0)
    assert cluster.status_of() is EndpointStatus.FAILED
    cluster.fails = {"fast"}
    cluster.run_until(1060.0)
    assert (cluster.status_of(), failure(cluster).backend) == (EndpointStatus.IN_SERVICE, "fast")


def test_a_backend_without_room_is_told_until_there_is_room_also_while_nobody_asks() -> None:
    need = memory_need(None, make_model("m"))
    cluster = started(hybrid(FAST, LONG.model_copy(update={"memory_mb": 4096})), capacity=need + 100 * MIB)
    cluster.ask(variant="v", backend="long", queued=1)
    cluster.run_until(1003.0)
    assert (cluster.status_of(), failure(cluster).code, failure(cluster).backend) == (
        EndpointStatus.IN_SERVICE,
        "no_capacity",
        "long",
    )
    cluster.ask(variant="v", backend="long")
    cluster.ask(variant="v", backend="fast", queued=1)
    cluster.run_until(1010.0)
    assert (states(cluster, "fast"), failure(cluster).backend) == (["ready"], "long")
    cluster.add_node("n2")
    cluster.run_until(1011.0)
    assert failure(cluster) is None


# ---- updates -------------------------------------------------------------------------------------------------


def test_an_update_brings_up_the_backends_that_are_in_use() -> None:
    cluster = started(hybrid(keep_ready=600))
    cluster.ask(variant="v", backend="long", in_flight=1)
    cluster.run_until(1003.0)
    cluster.update("e", hybrid(FAST, LONG.model_copy(update={"slots": 9}), keep_ready=600))
    cluster.run_until(1010.0)
    assert cluster.endpoints[f"{TENANT}.e"][0].pending_config is None
    assert (states(cluster, "fast"), states(cluster, "long")) == ([], ["ready"])
    assert of(cluster, "long")[0].assignment.slots == 9


def test_a_plain_variant_becomes_several_engines_and_a_plain_one_again() -> None:
    plain = Variant(name="v", model="m", policy=ScalePolicy(keep_ready=600))
    cluster = started(plain)
    cluster.ask(variant="v", in_flight=1)
    cluster.run_until(1003.0)
    cluster.update("e", hybrid(keep_ready=600))
    cluster.run_until(1010.0)
    assert (states(cluster, ""), states(cluster, "fast"), states(cluster, "long")) == ([], ["ready"], [])
    cluster.ask(variant="v")
    cluster.ask(variant="v", backend="long", in_flight=1)
    cluster.run_until(1015.0)
    cluster.update("e", plain)
    cluster.run_until(1020.0)
    assert (states(cluster, ""), len(cluster.slots)) == (["ready"], 1)


# ---- pure pieces ---------------------------------------------------------------------------------------------


def test_a_part_is_served_by_its_engine_from_its_weights() -> None:
    model = make_model("m", engine=EngineKind.LLAMA_CPP)
    other = model.manifest.model_copy(update={"format": ModelFormat.SAFETENSORS})
    model = model.model_copy(update={"weights": {"full": other}, "engine_options": {"context": 64}})
    variant = hybrid(
        Backend(engine=EngineKind.LLAMA_CPP), Backend(engine=EngineKind.VLLM, weights="full", engine_options={"seed": 1})
    )
    (first, one), (second, two) = parts_of(variant)
    gguf, safetensors = model_of_part(model, one, first), model_of_part(model, two, second)
    assert gguf is not None
    assert safetensors is not None
    assert (gguf.engine, gguf.engine_options, gguf.manifest) == (EngineKind.LLAMA_CPP, {"context": 64}, model.manifest)
    assert (safetensors.engine, safetensors.engine_options, safetensors.manifest) == (EngineKind.VLLM, {"seed": 1}, other)
    assert model_of_part(model, two.model_copy(update={"weights": "none"}), second) is None


counts = st.lists(st.integers(0, 9), min_size=0, max_size=12)


@given(one=counts, other=counts, shift=st.sampled_from([0.0, 0.1]), since=st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_demand_of_two_is_never_told_as_less_than_it_was(one: list[int], other: list[int], shift: float, since: int) -> None:
    def told(values: list[int], at: float) -> EndpointDemand:
        history = tuple(Bucket(i + at, value, value, value) for i, value in enumerate(values))
        return EndpointDemand(queued=values[-1] if values else 0, history=history, bucket_s=1.0, valid=True)

    a, b = told(one, 0.0), told(other, shift)
    both = together(a, b)
    assert both.concurrency == a.concurrency + b.concurrency
    assert both.peak_since(since) >= max(a.peak_since(since), b.peak_since(since))
    assert both.trough_since(since) <= a.peak_since(since) + b.peak_since(since)


# ---- over time -----------------------------------------------------------------------------------------------

BACKENDS = ("fast", "long")


class AnyHybrid(RuleBasedStateMachine):
    """Whatever happens: bounds hold for each backend, nothing serves another's requests, Failed means that none can."""

    @initialize(
        least=st.tuples(st.integers(0, 1), st.integers(0, 1)), most=st.integers(1, 3), limit=st.none() | st.integers(1, 8)
    )
    def begin(self, least: tuple[int, int], most: int, limit: int | None) -> None:
        self.most = most
        several = [one.model_copy(update={"min_ready": kept}) for one, kept in zip((FAST, LONG), least, strict=True)]
        policy: dict[str, Any] = {"slots": 2, "max_instances": most, "keep_ready": 5, "keep_asleep": 20, "keep_staged": 60}
        self.variant = hybrid(*several, limit=limit, **policy)
        self.cluster = started(self.variant)

    @rule(backend=st.sampled_from(("", *BACKENDS)), queued=st.integers(0, 9), in_flight=st.integers(0, 9))
    def ask(self, backend: str, queued: int, in_flight: int) -> None:
        self.cluster.ask(variant="v", backend=backend, queued=queued, in_flight=in_flight)
        self.cluster.decide()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.run_until(self.cluster.now + seconds)

    @rule(backend=st.sampled_from(BACKENDS))
    def breaks_or_is_mended(self, backend: str) -> None:
        self.cluster.fails ^= {backend}

    @rule(slots=st.integers(1, 3))
    def is_updated(self, slots: int) -> None:
        if self.cluster.endpoints[f"{TENANT}.e"][0].pending_config is None:
            fast, long = self.variant.backends
            several = fast, long.model_copy(update={"slots": slots})
            self.variant = hybrid(*several, limit=self.variant.concurrency_limit, **self.variant.policy.model_dump())
            self.cluster.update("e", self.variant)
            self.cluster.decide()

    @invariant()
    def holds(self) -> None:
        view = self.cluster.view().endpoints[f"{TENANT}.e"]
        updating = view.record.pending_config is not None
        for backend in BACKENDS:
            up = [p for p in view.placed if p.assignment.backend == backend and p.wants_ready]
            assert len(up) <= self.most * (2 if updating else 1) + self.most, "beside what leaves"
        assert {p.assignment.backend for p in view.placed} <= set(BACKENDS)
        if view.record.status is EndpointStatus.FAILED:
            assert not any(p.ready for p in view.placed)
            assert {p.assignment.backend for p in view.placed if p.failed} == set(BACKENDS)


AnyHybrid.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyHybrid = AnyHybrid.TestCase
