"""What idle instances do where the endpoint names no times: rungs weighed over its own gaps, on nodes that obey."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from standby.controller.actions import Assign, Decision, Retarget, Unassign
from standby.controller.demotion import Step
from standby.controller.economics import PriceVector, preset
from standby.controller.economy import Economy
from standby.controller.plan import plan
from standby.controller.recorded import replay_decision
from standby.controller.scaling import ScaleDecision
from standby.controller.settings import ControllerSettings
from standby.controller.weighing import prices_in_words, prices_of, weighing
from standby.controller.why import outlook
from standby.domain.endpoint import NO_MEMORY, EndpointStatus, Failure, PricePreset, ScalePolicy
from standby.domain.errors import ConfigurationError, InvalidInput
from standby.domain.events import DecisionMade
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.names import key
from standby.domain.node import Device, DeviceKind, MemoryLedger
from support import played
from support.cluster import GIB, TENANT, Cluster, make_model, make_node
from support.played import START, ask_once, live_cluster, live_moves

pytestmark = pytest.mark.decision
REGULAR_S = 900.0


def habitual(times: int = 6, share: float = 1.0, **policy: Any) -> Cluster:
    """Return a cluster whose endpoint was asked every 15 minutes, ``times`` times, and is idle for a moment now."""
    cluster = live_cluster(PriceVector(), share, **policy)
    for number in range(times):
        ask_once(cluster, 5.0 + number * REGULAR_S)
    return cluster


def retargets(cluster: Cluster) -> list[Retarget]:
    return [action for _, action in cluster.trace if isinstance(action, Retarget)]


def event(action: Retarget) -> DecisionMade:
    return DecisionMade(id="d", at=0.0, source="controller/c", action="sink", reason=action.reason, inputs=action.inputs)


# ---- who decides -------------------------------------------------------------------------------------------


def test_endpoints_own_times_win() -> None:
    cluster = live_cluster(PriceVector(), keep_ready=40, keep_asleep=100)
    end = ask_once(cluster, 5.0)
    cluster.run_until(START + 1000.0)
    assert [rung for _, rung in live_moves(cluster)] == [Rung.ASLEEP, Rung.STAGED]
    assert [at for at, _ in live_moves(cluster)] == pytest.approx([end + 40.0, end + 140.1], abs=0.01)


def test_weights_stay_staged_unless_the_endpoint_names_a_time() -> None:
    cluster = live_cluster(preset("frugal"))
    ask_once(cluster, 5.0)
    cluster.run_until(START + 3 * 3600.0)
    assert cluster.state_of() == ["staged"]
    named = live_cluster(preset("frugal"), keep_staged=60)
    ask_once(named, 5.0)
    named.run_until(START + 3 * 3600.0)
    assert named.state_of() == []
    assert isinstance(named.trace[-1][1], Unassign)


def test_rung_with_a_time_of_its_own_is_not_jumped_over() -> None:
    """Waiting costs nothing here, so that staged would be the cheapest at once; but it is to be asleep for a minute."""
    cluster = live_cluster(PriceVector(wait=0.0, late=0.0), keep_asleep=60)
    ask_once(cluster, 5.0)
    cluster.run_until(START + 300.0)
    assert [rung for _, rung in live_moves(cluster)] == [Rung.ASLEEP, Rung.STAGED]
    (slept, _), (ended, _) = live_moves(cluster)
    assert ended - slept == pytest.approx(60.1, abs=0.01)


def test_nobody_waits_longer_than_the_endpoint_allows() -> None:
    cluster = live_cluster(preset("frugal"), max_cold_wait=5)
    ask_once(cluster, 5.0)
    cluster.run_until(START + 3 * 3600.0)
    assert cluster.state_of() == ["asleep"], "a start from staged takes 10 s"


def test_patience_orders_the_presets() -> None:
    ready_s = []
    for name in ("frugal", "balanced", "snappy"):
        cluster = live_cluster(preset(name))
        end = ask_once(cluster, 5.0)
        cluster.run_until(START + 3600.0)
        ready_s.append(live_moves(cluster)[0][0] - end)
    assert ready_s == sorted(ready_s)
    assert ready_s[0] < ready_s[-1]


def test_endpoint_has_prices_of_its_own() -> None:
    snappy = prices_of(ScalePolicy(price_preset=PricePreset.SNAPPY), PriceVector(device=3.0))
    assert (snappy.device, snappy.wait, snappy.late) == (3.0, 400.0, 4000.0)
    assert prices_of(ScalePolicy(wait_price=7.0), PriceVector()).wait == 7.0
    assert prices_in_words(ScalePolicy(wait_price=7.0), Economy()) == "balanced, a second's wait at 7"


def test_never_asleep_for_less_than_sleeping_and_waking_take() -> None:
    cluster = live_cluster(PriceVector(wait=0.0, late=0.0))
    end = ask_once(cluster, 5.0)
    cluster.run_until(START + 100.0)
    assert played.SLEEP_S + played.WAKE_S <= live_moves(cluster)[0][0] - end < 1.5


def test_min_ready_and_work_are_left_alone() -> None:
    kept = live_cluster(PriceVector(wait=0.0, late=0.0), min_ready=1)
    kept.run_until(START + 600.0)
    busy = live_cluster(PriceVector(wait=0.0, late=0.0))
    busy.ask(queued=1)
    busy.run_until(START + played.START_S + 1.0)
    busy.ask(in_flight=1)
    busy.run_until(START + 600.0)
    assert (kept.state_of(), busy.state_of()) == (["ready"], ["ready"])
    assert not live_moves(kept) + live_moves(busy)


def test_no_data_no_decision() -> None:
    cluster = live_cluster(PriceVector(wait=0.0, late=0.0))
    cluster.ask(queued=1)
    cluster.beats = False
    cluster.run_until(START + 3600.0)
    assert not live_moves(cluster)


def test_broken_instance_is_let_go_after_a_while() -> None:
    cluster = live_cluster(PriceVector())
    cluster.fails = {"e"}
    cluster.ask(queued=1)
    cluster.run_until(START + 12.0)
    cluster.ask()
    cluster.run_until(START + 300.0)
    assert cluster.state_of() == ["failed"]
    cluster.run_until(START + 420.0)
    assert cluster.state_of() == []


# ---- climbs before a request ---------------------------------------------------------------------------------


def test_it_climbs_before_the_request_and_says_what_that_brought() -> None:
    cluster = habitual()
    climbs = [action for action in retargets(cluster) if action.wish is not None]
    assert climbs
    assert all(action.keeps_ahead(None) in {Rung.STAGED, Rung.ASLEEP} for action in climbs)
    told = [action for action in retargets(cluster) if "regret" in action.inputs]
    assert told
    assert all(action.inputs["paid"] == pytest.approx(action.inputs["saved"] + action.inputs["regret"]) for action in told)  # type: ignore[operator]
    assert any(float(action.inputs["saved"] or 0) > 0 for action in told), "some request has come as expected"


def test_request_that_never_comes_is_regretted() -> None:
    cluster = habitual()
    before = len(cluster.trace)
    cluster.run_until(cluster.now + 6 * 3600.0)
    told = [a for _, a in cluster.trace[before:] if isinstance(a, Retarget) and "regret" in a.inputs]
    assert told
    assert all(action.inputs["saved"] == 0.0 and float(action.inputs["regret"] or 0) > 0 for action in told)


@pytest.mark.parametrize(("share", "policy"), [(0.001, {}), (1.0, {"keep_ready": 30})])
def test_no_climb_beyond_the_budget_or_against_the_endpoints_own_time(share: float, policy: dict[str, Any]) -> None:
    cluster = habitual(share=share, **policy)
    cluster.run_until(cluster.now + 2000.0)
    assert not [action for action in retargets(cluster) if action.wish is not None]


def test_refused_climb_is_told_with_its_reason() -> None:
    """Its node could afford the climb if it were empty, and is not."""
    cluster = habitual(share=0.06)
    seen = cluster.nodes["n1"]
    full = seen.record.model_copy(update={"memory": MemoryLedger(capacity=256 * GIB, reserved=128 * GIB)})
    cluster.nodes["n1"] = replace(seen, record=full)
    held: list[Decision] = []
    while not held and cluster.now < START + 6 * REGULAR_S:
        cluster.run_until(cluster.now + 5.0)
        held = [one for one in plan(cluster.view(), cluster.now).decisions if "climb ahead" in one.reason]
    assert held
    assert "have" in held[0].reason, "it says what the budget is"


def test_climb_ahead_gives_way_as_soon_as_memory_is_wanted() -> None:
    cluster = habitual()
    while not any(isinstance(a, Retarget) and a.wish is not None for _, a in cluster.trace[-1:]):
        cluster.run_until(cluster.now + 1.0)
    (slot,) = cluster.slots.values()
    assert (slot.assignment.rung, slot.assignment.ahead) == (Rung.READY, Rung.STAGED)
    cluster.economy = Economy(prices=PriceVector(), measured=cluster.economy.measured, wanted=frozenset({"n1"}))
    cluster.decide()
    (slot,) = cluster.slots.values()
    assert (slot.assignment.rung, slot.assignment.ahead) == (Rung.STAGED, None)
    assert "somebody waits" in cluster.trace[-1][1].reason


def test_climb_that_finds_no_memory_falls_back() -> None:
    cluster = habitual()
    while not any(isinstance(a, Retarget) and a.wish is not None for _, a in cluster.trace[-1:]):
        cluster.run_until(cluster.now + 1.0)
    (name,) = cluster.slots
    cluster.report(name, InstanceState.STAGED, failure=Failure(reason="no memory", code=NO_MEMORY, attempts=9))
    cluster.decide()
    assert cluster.status_of() is EndpointStatus.IN_SERVICE
    assert next(iter(cluster.slots.values())).assignment.rung is Rung.STAGED


def test_instance_beside_busy_others_is_held_as_if_nothing_were_known() -> None:
    """The endpoint's gaps say when its first instance is needed, not its second one."""
    cluster = live_cluster(PriceVector(), max_instances=2)
    cluster.ask(queued=40)
    cluster.run_until(START + 11.0)
    cluster.ask(in_flight=16, queued=24)
    cluster.run_until(START + 60.0)
    assert cluster.state_of() == ["ready", "ready"]
    cluster.ask(in_flight=1)
    cluster.run_until(START + 3000.0)
    assert cluster.state_of() == ["ready", "staged"]
    assert not [action for action in retargets(cluster) if action.wish is not None]


# ---- what is told ----------------------------------------------------------------------------------------------


def test_every_weighed_decision_is_made_again_from_its_event() -> None:
    cluster = habitual()
    cluster.run_until(cluster.now + 7200.0)
    weighed = [action for action in retargets(cluster) if "weighed" in action.inputs]
    assert len(weighed) > 10
    for action in weighed:
        again = replay_decision(event(action))
        assert isinstance(again, Step)
        until = action.inputs["until_s"]
        said = Step(Rung[str(action.inputs["hold"]).upper()], math.inf if until is None else float(until), action.reason)
        assert again == said
        assert len(event(action).encode()) < 4096


def test_every_number_of_instances_is_found_again_from_its_event() -> None:
    cluster = live_cluster(PriceVector(), max_instances=4, scale_in_after=30)
    cluster.ask(queued=40)
    cluster.run_until(START + 11.0)
    for seconds, in_flight in ((60.0, 48), (20.0, 3), (30.0, 40), (90.0, 2), (10.0, 0)):
        cluster.ask(in_flight=in_flight)
        cluster.run_until(cluster.now + seconds)
    counted = [a for _, a in cluster.trace if isinstance(a, Assign | Retarget) and "scaled" in a.inputs]
    assert {type(action) for action in counted} == {Assign, Retarget}
    for action in counted:
        said = DecisionMade(id="d", at=0.0, source="c", action="climb", reason=action.reason, inputs=action.inputs)
        again = replay_decision(said)
        assert isinstance(again, ScaleDecision)
        assert again.count == action.inputs["desired"]
        assert action.reason.startswith(again.reason)
        assert len(said.encode()) < 16_384


def test_what_was_not_weighed_is_not_replayed() -> None:
    cluster = live_cluster(PriceVector(), keep_ready=1)
    ask_once(cluster, 5.0)
    cluster.run_until(START + 60.0)
    timed = next(action for action in retargets(cluster) if action.rung is Rung.ASLEEP)
    with pytest.raises(InvalidInput, match="was not weighed"):
        replay_decision(event(timed))
    with pytest.raises(InvalidInput, match="cannot be read again"):
        replay_decision(DecisionMade(id="x", at=0, source="c", action="sink", reason="", inputs={"weighed": '{"version": 99}'}))


def test_outlook_says_what_comes_next() -> None:
    cluster = habitual(1)
    told = outlook(cluster.view(), cluster.view().endpoints[key(TENANT, "e")], cluster.now, "c1")
    (one,) = told.intentions
    assert (told.prices, told.keeps) == ("balanced", ())
    assert (one.rung, one.then, one.by) == (Rung.READY, Rung.ASLEEP, "policy (balanced)")
    assert one.for_s is not None
    cluster.run_until(cluster.now + one.for_s)
    assert live_moves(cluster)[-1][1] is Rung.ASLEEP


def test_outlook_of_an_endpoint_with_times_and_of_one_that_works() -> None:
    cluster = live_cluster(PriceVector(), keep_ready=300, keep_staged=math.inf)
    ask_once(cluster, 5.0)
    name = key(TENANT, "e")
    told = outlook(cluster.view(), cluster.view().endpoints[name], cluster.now, "c1")
    assert told.keeps == ("keep ready: 5 m 0 s", "keep staged: forever")
    assert (told.intentions[0].by, told.intentions[0].then) == ("keep_ready 5 m 0 s", Rung.ASLEEP)
    cluster.ask(in_flight=1)
    working = outlook(cluster.view(), cluster.view().endpoints[name], cluster.now, "c1").intentions[0]
    assert (working.by, working.for_s, working.idle_s) == ("demand", None, None)


# ---- the ladder ------------------------------------------------------------------------------------------------


def observed(**fields: Any) -> Cluster:
    cluster = Cluster()
    cluster.nodes.clear()
    cluster.add_node(**fields)
    return cluster


def test_guesses_until_something_is_measured() -> None:
    cluster = observed()
    weighed = weighing(Economy(), cluster.nodes["n1"], make_model(size=GIB), ScalePolicy(), None)
    assert [(one.rung, one.wait_s) for one in weighed.ladder] == [(Rung.READY, 0.0), (Rung.ASLEEP, 0.3), (Rung.STAGED, 5.0)]
    assert weighed.ladder[0].hold == pytest.approx(1.3 * GIB / 1e9 + 0.005 * GIB / 1e9)


def test_what_a_gpu_holds_costs_its_price_and_the_rest_the_hosts() -> None:
    gpu = Device(id="GPU-0", kind=DeviceKind.GPU, memory_total=80 * GIB)
    cluster = observed(devices=(gpu,), engine_devices={EngineKind.FAKE: DeviceKind.GPU}, capacity=64 * GIB)
    free = PriceVector(host=0.0, disk=0.0)
    ladder = weighing(Economy(prices=free), cluster.nodes["n1"], make_model(size=GIB), ScalePolicy(), None).ladder
    assert ladder[0].hold == pytest.approx(1.3 * GIB / 1e9, rel=1e-6)
    assert ladder[1].hold < 0.1 * ladder[0].hold


def test_same_measurements_give_the_very_same_ladder() -> None:
    """The plan of an endpoint is remembered by its ladder: beats alone must not make it anew."""
    cluster = observed()
    economy, model, policy = Economy(), make_model(), ScalePolicy()
    first = weighing(economy, cluster.nodes["n1"], model, policy, None)
    cluster._tick()
    again = weighing(economy, cluster.nodes["n1"], model, policy, None)
    assert again.ladder is first.ladder
    slower = make_node(costs={model.manifest.digest: {Rung.STAGED: 50.0}})
    node = type(cluster.nodes["n1"])(slower, cluster.now, confirmed=True)
    assert weighing(economy, node, model, policy, None).ladder != first.ladder


# ---- settings --------------------------------------------------------------------------------------------------


def test_prices_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDBY_PRICE_PRESET", "snappy")
    monkeypatch.setenv("STANDBY_PRICE_HOST", "0.5")
    assert ControllerSettings.load().prices == PriceVector(host=0.5, wait=400.0, late=4000.0)
    monkeypatch.setenv("STANDBY_PRICE_WAIT", "3")
    assert ControllerSettings.load().economy.prices == PriceVector(host=0.5, wait=3.0, late=30.0)


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e12", "cheap"])
@pytest.mark.parametrize("name", ["DEVICE", "HOST", "DISK", "WAIT"])
def test_absurd_prices_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"STANDBY_PRICE_{name}", value)
    with pytest.raises(ConfigurationError, match=f"STANDBY_PRICE_{name}") as refused:
        ControllerSettings.load()
    assert refused.value.remedy


def test_unknown_preset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDBY_PRICE_PRESET", "cheap")
    with pytest.raises(ConfigurationError, match="frugal"):
        ControllerSettings.load()


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "cheap"])
def test_absurd_price_of_an_endpoints_wait_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="wait_price"):
        ScalePolicy.model_validate({"wait_price": value})


def test_first_start_is_still_one_assignment() -> None:
    cluster = habitual(2)
    assert [type(action) for _, action in cluster.trace].count(Assign) == 1
