"""What a manifest works out once is right for every copy, and equal manifests of a process are one."""

from __future__ import annotations

from standby.domain.endpoint import Variant
from standby.domain.model import EngineKind, Model, ObjectRef
from standby.domain.serving import version_of
from support.builders import a_manifest, a_model


def test_a_changed_copy_has_its_own_digest_and_size() -> None:
    first = a_manifest()
    before = (first.digest, first.total_bytes, first.unpacked_bytes)
    other = first.model_copy(update={"objects": (ObjectRef(key="k", path="p", size=7),)})
    assert (other.total_bytes, other.unpacked_bytes) == (7, 7)
    assert other.digest != first.digest
    assert (first.digest, first.total_bytes, first.unpacked_bytes) == before
    assert first == a_manifest(), "what was worked out is no part of its value"
    assert "digest" not in first.model_dump()
    assert first.model_dump_json() == a_manifest().model_dump_json()


def test_equal_manifests_are_one_and_others_of_the_same_digest_are_not() -> None:
    model = a_model(weights={"q4": a_manifest(source_uri="s3://models/q4/")})
    again = Model.model_validate_json(model.model_dump_json())
    assert again.manifest is model.manifest
    assert again.weights["q4"] is model.weights["q4"]
    noted = Model.model_validate_json(model.model_dump_json().replace('"notes":[]', '"notes":["x"]'))
    assert noted.manifest.digest == model.manifest.digest
    assert noted.manifest is not model.manifest
    assert noted.manifest.notes == ("x",)


def test_versions_tell_options_of_another_type_apart() -> None:
    models = [a_model(engine=EngineKind.VLLM, engine_options={"o": value}) for value in (1, True, 1.0)]
    versions = {version_of(model, Variant(model="m")) for model in models}
    assert len(versions) == 3
