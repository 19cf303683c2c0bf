"""What was held, against always on, and against SageMaker Serverless's published price."""

from __future__ import annotations

import pytest

from standby.console import savings
from standby.console.counts import Count
from standby.console.savings import GB, Account, Ledger, Memory
from standby.console.settings import ConsoleSettings
from standby.console.values import Scope
from standby.domain.endpoint import Endpoint
from standby.domain.instance import Instance, InstanceState
from standby.domain.model import EngineKind
from standby.domain.node import DeviceKind, Node
from support.builders import TENANT, an_endpoint, an_instance
from support.cluster import make_node
from support.slices import at_once

PRICES = ConsoleSettings(usd_host_gb_hour=3600.0, usd_device_gb_hour=36000.0, usd_serverless_gb_second=0.5)
E = (TENANT, "e")
OTHER = "999999999999"
MIB = 2**20


def nothing_known(_endpoint: Endpoint) -> Memory:
    return Memory()


def ledger(*seconds: tuple[float, list[Instance]], endpoints: list[Endpoint] | None = None, node: Node | None = None) -> Ledger:
    """A ledger that saw these instances for so many seconds each."""
    kept = Ledger(PRICES)
    nodes = {} if node is None else {node.name: node}
    for lasted, instances in seconds:
        at_once(kept.take([an_endpoint()] if endpoints is None else endpoints, instances, nodes, {}, lasted))
    return kept


def account(kept: Ledger, endpoint: Endpoint | None = None) -> Account:
    one = endpoint or an_endpoint()
    return kept.by_endpoint([one], nothing_known)[one.tenant, one.name]


def test_held_is_bytes_times_seconds_and_always_on_is_the_footprint_for_all_of_them() -> None:
    ready, asleep = an_instance(resident_bytes=4 * 10**9), an_instance(state=InstanceState.ASLEEP, resident_bytes=10**9)

    found = account(ledger((10.0, [ready]), (30.0, [asleep]), (60.0, [])))

    assert found.held.host == (4 * 10 + 1 * 30) * GB
    assert found.always_on.host == 4 * 100 * GB


def test_always_on_needs_as_many_as_were_ready_at_once() -> None:
    two = [an_instance(id="i1", resident_bytes=10**9), an_instance(id="i2", resident_bytes=10**9)]

    found = account(ledger((10.0, two), (10.0, two[:1])))

    assert found.held.host == 30 * GB
    assert found.always_on.host == 2 * 20 * GB


def test_an_endpoint_that_never_ran_is_reckoned_by_what_its_model_needs() -> None:
    kept = ledger((100.0, []))

    found = kept.by_endpoint([an_endpoint()], lambda _endpoint: Memory(2 * 10**9))[E]

    assert found.held == Memory()
    assert found.always_on.host == 200 * GB


def test_device_memory_counts_while_awake_as_its_node_measured_it() -> None:
    node = make_node("n1").model_copy(
        update={"engine_devices": {EngineKind.VLLM: DeviceKind.GPU}, "device_footprints": {"d": 8 * 10**9}}
    )
    ready = an_instance(engine=EngineKind.VLLM, model_digest="d", resident_bytes=10**9)
    asleep = ready.model_copy(update={"state": InstanceState.ASLEEP})

    found = account(ledger((10.0, [ready]), (10.0, [asleep]), node=node))

    assert found.held == Memory(20 * GB, 80 * GB)
    assert found.always_on == Memory(20 * GB, 160 * GB)
    assert found.held.usd(PRICES) == pytest.approx(20 + 800)


def test_serverless_is_billed_by_memory_size_and_the_seconds_of_inference() -> None:
    kept = Ledger(PRICES)
    instance = an_instance(resident_bytes=1500 * MIB)

    at_once(kept.take([an_endpoint()], [instance], {}, {E: Count(4, 0, 0.0, busy_s=3.0)}, 10.0))

    # 1500 MiB need the size of 2 GB.
    assert account(kept).serverless_usd == 3.0 * 2 * 0.5


@pytest.mark.parametrize(("mib", "size"), [(1, 1), (1024, 1), (1025, 2), (6144, 6), (20_000, 20)])
def test_memory_sizes_are_whole_gigabytes(mib: int, size: int) -> None:
    assert savings.serverless_size(Memory(mib * MIB)) == size


def test_what_a_deleted_endpoint_saved_stays_with_its_tenant() -> None:
    kept = Ledger(PRICES)
    at_once(kept.take([an_endpoint()], [an_instance(resident_bytes=10**9)], {}, {}, 10.0))
    at_once(kept.take([an_endpoint()], [], {}, {}, 90.0))

    at_once(kept.take([], [], {}, {}, 1000.0))
    total = kept.total(Scope(TENANT), kept.by_endpoint([], nothing_known))

    assert total.held.host == 10 * GB
    assert total.always_on.host == pytest.approx(1100 * GB)


def test_a_tenants_total_has_nobody_elses() -> None:
    mine, foreign = an_endpoint(), an_endpoint(tenant=OTHER)
    kept = Ledger(PRICES)
    instances = [an_instance(resident_bytes=10**9), an_instance(id="i2", tenant=OTHER, resident_bytes=5 * 10**9)]
    at_once(kept.take([mine, foreign], instances, {}, {}, 10.0))
    accounts = kept.by_endpoint([mine, foreign], nothing_known)

    assert kept.total(Scope(TENANT), accounts).held.host == 10 * GB
    assert kept.total(Scope("", admin=True), accounts).held.host == 60 * GB


def test_the_row_says_what_is_counted_and_by_which_prices() -> None:
    shown = savings.row(Account(Memory(2 * GB), Memory(10 * GB), 0.25), 5.0, PRICES)

    assert (shown["held_gb_s"], shown["always_on_gb_s"], shown["saved_gb_s"]) == (2.0, 10.0, 8.0)
    assert (shown["held_usd"], shown["always_on_usd"], shown["saved_usd"]) == (2.0, 10.0, 8.0)
    assert shown["sagemaker_serverless_usd"] == 0.25
    assert shown["prices"]["STANDBY_USD_SERVERLESS_GB_SECOND"] == 0.5
    assert "published" in shown["words"]


def test_the_defaults_are_the_published_prices() -> None:
    """3 GB of SageMaker Serverless cost $0.00006 a second (Price List API, September 2026, us-east-1)."""
    assert ConsoleSettings().usd_serverless_gb_second * 3 == pytest.approx(0.00006)


@pytest.mark.parametrize(
    ("always_on", "shown"), [(0.0, 0.0), (0.00001, 0.0), (0.012345, 0.0123), (1.23456, 1.23), (123.456, 123.0)]
)
def test_a_row_shows_three_digits_so_that_it_does_not_change_all_the_time(always_on: float, shown: float) -> None:
    assert savings.saved_usd(Account(always_on=Memory(always_on * GB)), PRICES) == pytest.approx(shown)
