"""``scale_out_at``: another instance is wanted before the slots of those that there are are full."""

from __future__ import annotations

import pytest

from standby.controller import scaling
from standby.controller.asked import Bucket, EndpointDemand
from standby.domain.durations import FOREVER
from standby.domain.endpoint import EndpointConfig, ScalePolicy, Variant, VariantCapacity
from standby.domain.serving import variants_now


def wanted(concurrency: int, current: int = 1, **policy: object) -> int:
    demand = EndpointDemand(
        in_flight=concurrency, valid=True, valid_since=0.0, history=(Bucket(0.0, concurrency, concurrency, concurrency),)
    )
    capacity = scaling.Capacity(current, current, 0.0, climb_s=2.0)
    return scaling.desired(demand, 1.0, ScalePolicy.model_validate({"max_instances": 9, **policy}), capacity, 100.0).count


def test_more_instances_before_the_slots_are_full() -> None:
    assert wanted(6, slots=8) == 1
    assert wanted(6, slots=8, scale_out_at=2) == 3
    assert wanted(6, slots=8, scale_out_at=2.5) == 3


def test_fewer_instances_when_the_load_has_fallen_below_it() -> None:
    assert wanted(2, current=3, slots=8, scale_out_at=2) == 1


def test_it_never_asks_more_of_an_instance_than_its_slots() -> None:
    assert wanted(6, slots=2, scale_out_at=100) == 3


def test_demand_that_grew_in_steps_is_met_in_one_plan() -> None:
    """Planning again over its own result would otherwise find that the second step, too, has lasted for long enough."""
    history = (Bucket(80.0, 2, 2, 2), Bucket(80.5, 3, 3, 3), Bucket(99.5, 3, 4, 4))
    demand = EndpointDemand(queued=4, valid=True, valid_since=0.0, history=history)
    policy = ScalePolicy(slots=1, max_instances=9)
    first = scaling.desired(demand, 1.0, policy, scaling.Capacity(1, 1, 0.0, climb_s=2.0), 100.0)
    again = scaling.desired(demand, 1.0, policy, scaling.Capacity(first.count, 1, 0.0, climb_s=2.0), 100.0)
    assert (first.count, again.count) == (3, 3)
    assert first.wake_at == again.wake_at == 101.75  # when the fourth will have lasted, too


@pytest.mark.parametrize("value", [0, -1])
def test_it_is_above_zero(value: float) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        ScalePolicy(scale_out_at=value)


def test_a_capacity_changes_it_while_the_endpoint_runs() -> None:
    config = EndpointConfig(tenant="1", name="c", variants=(Variant(model="m"),), created_at=1.0)
    capacity = VariantCapacity(scale_out_at=2.0, scale_in_after=FOREVER)
    again = VariantCapacity.model_validate_json(capacity.model_dump_json())
    (variant,) = variants_now(config, {"AllTraffic": again})
    assert (variant.policy.load, variant.policy.scale_in_after) == (2.0, FOREVER)
    (before,) = variants_now(config, {"AllTraffic": VariantCapacity()})
    assert (before.policy.load, before.policy.scale_in_after) == (4, 60.0)
