"""Fingerprints: everything that matters changes them, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.model import EngineKind
from standby.runtime.cpu_facts import cpu_facts
from standby.runtime.engines import resolved_options
from standby.runtime.fingerprint import DeviceFacts, fingerprint, of_tenant

GPU = DeviceFacts(name="NVIDIA H100", compute_capability="9.0", driver="580.1")
BASE: dict[str, Any] = {
    "engine": EngineKind.VLLM,
    "version": "vllm 0.32.0 torch 2.13.0",
    "digest": "d" * 64,
    "options": {"dtype": "bfloat16", "enforce_eager": False},
    "device": GPU,
    "slots": 4,
}
CHANGES: list[dict[str, Any]] = [
    {"engine": EngineKind.FAKE},
    {"version": "vllm 0.33.0 torch 2.13.0"},
    {"digest": "e" * 64},
    {"options": {"dtype": "float32", "enforce_eager": False}},
    {"options": {"dtype": "bfloat16"}},
    {"options": {"dtype": "bfloat16", "enforce_eager": 0}},
    {"options": {"dtype": "bfloat16", "enforce_eager": "false"}},
    {"device": GPU.model_copy(update={"name": "NVIDIA H200"})},
    {"device": GPU.model_copy(update={"compute_capability": "10.0"})},
    {"device": GPU.model_copy(update={"driver": "581.0"})},
    {"device": GPU.model_copy(update={"processors": 2})},
    {"slots": 5},
]
OPTIONS = st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.booleans(), st.floats(allow_nan=False)), max_size=6)
X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9555
flags\t\t: fpu sse4_2 avx avx2 avx512f avx512_bf16 amx_tile rdrand hypervisor

processor\t: 1
model name\t: another
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd sve sve2 i8mm bf16 crc32\nCPU part\t: 0xd4f\n"


@pytest.mark.decision
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_field_changes_it(change: dict[str, Any]) -> None:
    assert fingerprint(**{**BASE, **change}) != fingerprint(**BASE)


@pytest.mark.decision
@given(options=OPTIONS, data=st.data())
def test_the_order_of_options_does_not_count_and_their_content_does(options: dict[str, Any], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(options.items()))))
    name = fingerprint(**{**BASE, "options": options})
    assert name == fingerprint(**{**BASE, "options": shuffled})
    assert len(name) == 64
    for key in options:
        fewer = {other: value for other, value in options.items() if other != key}
        assert fingerprint(**{**BASE, "options": fewer}) != name


@pytest.mark.decision
@pytest.mark.parametrize("engine", [EngineKind.VLLM, EngineKind.LLAMA_CPP, EngineKind.TENSORRT_LLM])
def test_a_default_that_changes_changes_it(engine: EngineKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade may set another default; tokens of the old one would be compared with those of the new for ever."""
    asked = {**BASE, "engine": engine, "options": {}}
    before = fingerprint(**asked)
    monkeypatch.setattr(resolved_options, "resolved", lambda *_: {"context": 7})
    assert fingerprint(**asked) != before


@pytest.mark.decision
def test_what_engines_write_is_kept_apart_by_tenant() -> None:
    name = fingerprint(**BASE)
    assert len({name, of_tenant(name, "000000000001"), of_tenant(name, "000000000002")}) == 3


@pytest.mark.parametrize(
    ("text", "name", "flags"),
    [
        (X86, "AMD EPYC 9555", "amx_tile avx avx2 avx512_bf16 avx512f sse4_2"),
        (ARM, "0xd4f", "asimd bf16 i8mm sve sve2"),
        ("", "unknown", ""),
    ],
)
def test_the_instruction_sets_that_kernels_are_made_for(tmp_path: Path, text: str, name: str, flags: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    facts = cpu_facts(processors=2, cpu_info=tmp_path / "cpuinfo")
    assert (facts.name, facts.compute_capability, facts.processors) == (name, flags, 2)


def test_this_machine_tells_of_itself_the_same_twice(tmp_path: Path) -> None:
    assert cpu_facts() == cpu_facts()
    assert cpu_facts().processors >= 1
    assert cpu_facts(cpu_info=tmp_path / "nothing").name == "unknown"
