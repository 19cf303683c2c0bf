"""An endpoint that chose one of a model's weights: placed, costed and replaced by exactly those."""

from __future__ import annotations

import pytest

from standby.controller.actions import Assign, Unassign
from standby.domain.instance import Rung
from standby.domain.names import key
from support.builders import a_manifest
from support.cluster import TENANT, Cluster, cached, make_model

pytestmark = pytest.mark.decision

Q4 = a_manifest(source_uri="s3://models/q4.gguf")


def a_cluster(weights: str | None) -> Cluster:
    cluster = Cluster()
    model = make_model("m").model_copy(update={"weights": {"q4": Q4}})
    held = cached(model.model_copy(update={"manifest": Q4}))
    cluster.add_node(artifacts=(held,), costs={Q4.digest: {Rung.STAGED: 0.25}})
    cluster.add_endpoint("e", model=model)
    choose(cluster, weights)
    return cluster


def choose(cluster: Cluster, weights: str | None) -> None:
    config = cluster.configs["e"]
    (variant,) = config.variants
    changed = variant.model_copy(update={"weights": weights})
    cluster.configs["e"] = config.model_copy(update={"variants": (changed,)})


def test_the_assignment_carries_the_chosen_weights_alone() -> None:
    cluster = a_cluster("q4")
    cluster.ask(queued=1)

    (assign,) = [action for action in cluster.decide().actions if isinstance(action, Assign)]

    assert assign.model.manifest == Q4
    assert assign.model.weights == {}
    assert (assign.inputs["from_rung"], assign.inputs["predicted_s"]) == ("staged", 0.25)


def test_without_a_choice_it_is_the_registered_ones_and_no_others_travel() -> None:
    cluster = a_cluster(None)
    cluster.ask(queued=1)

    (assign,) = [action for action in cluster.decide().actions if isinstance(action, Assign)]

    assert assign.model.manifest == cluster.models["m"].manifest
    assert assign.model.weights == {}
    assert assign.inputs["from_rung"] == "cold"


def test_what_runs_stays_when_other_weights_are_added_to_the_model() -> None:
    cluster = a_cluster("q4")
    cluster.ask(in_flight=1)
    cluster.decide()
    cluster.run_until(1010.0)
    more = {**cluster.models["m"].weights, "q8": a_manifest(source_uri="s3://models/q8.gguf")}
    cluster.models["m"] = cluster.models["m"].model_copy(update={"weights": more})

    assert cluster.decide().actions == ()


def test_another_choice_replaces_what_runs() -> None:
    cluster = a_cluster("q4")
    cluster.ask(in_flight=1)
    cluster.decide()
    cluster.run_until(1010.0)
    choose(cluster, None)

    cluster.run_until(1100.0)

    starts = [action for _, action in cluster.trace if isinstance(action, Assign)]
    assert [action.model.manifest.source_uri for action in starts] == ["s3://models/q4.gguf", "s3://models/m/"]
    assert [action for _, action in cluster.trace if isinstance(action, Unassign)]


def test_unknown_weights_hold_everything() -> None:
    """A gateway never stores them; if they vanish all the same, what runs is not taken away."""
    cluster = a_cluster("gone")
    cluster.ask(queued=1)

    plan = cluster.decide()

    assert plan.actions == ()
    assert [decision.action for decision in plan.decisions] == ["hold"]
    assert key(TENANT, "e") in cluster.endpoints
