"""GPUs as NVML tells them, against a stand-in of its Python module that is checked against the real one."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from standby.domain.node import Device, DeviceKind, Link
from standby.runtime.devices.inventory import Devices
from standby.runtime.devices.nvml import Nvml
from standby.runtime.devices.nvml_inventory import hidden_by, visible_of
from support import nvml_stand_in
from support.nvml_stand_in import GIB, Card, NvmlStandIn, Part, partitioned, two_cards
from support.waiting import until

MIB = 2**20


@asynccontextmanager
async def devices_of(stand_in: NvmlStandIn, cordons: list[tuple[str, str]] | None = None) -> AsyncIterator[Devices]:
    """The agent's view of a scripted machine, without the host's processors."""
    told = [] if cordons is None else cordons
    devices = Devices(Nvml.open(stand_in), on_cordon=lambda *told_of: told.append(told_of), host=lambda: ())
    await devices.start()
    try:
        yield devices
    finally:
        await devices.stop()
        assert (stand_in.opened, stand_in.event_sets) == (0, 0)


def test_the_stand_in_has_nothing_that_the_real_binding_lacks() -> None:
    """A stand-in with names or arguments of its own would prove nothing."""
    real = pytest.importorskip("pynvml")
    for name in dir(NvmlStandIn):
        if not name.lower().startswith("nvml"):
            continue
        ours, theirs = getattr(NvmlStandIn, name), getattr(real, name)
        if inspect.isfunction(ours):
            wanted = list(inspect.signature(ours).parameters)[1:]
            assert len(wanted) == len(inspect.signature(inspect.unwrap(theirs)).parameters), name
        elif inspect.isclass(ours):
            assert issubclass(theirs, real.NVMLError)
        else:
            assert ours == theirs, name


def test_the_real_binding_without_a_driver_means_no_gpus(caplog: pytest.LogCaptureFixture) -> None:
    real = pytest.importorskip("pynvml")
    try:
        real.nvmlInit()
    except real.NVMLError_LibraryNotFound:
        pass
    else:
        real.nvmlShutdown()
        pytest.skip("this machine has NVIDIA's driver")
    with caplog.at_level(logging.INFO):
        assert Nvml.open() is None
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "no GPUs: NVML Shared Library Not Found" in caplog.text


def test_importing_standby_does_not_import_nvml() -> None:
    """A process that forks engines must never have opened it."""
    code = "import sys, standby.runtime.devices.inventory; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_abandoned_redirector_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "13.0.1")
    assert Nvml.open(two_cards()) is not None
    assert "abandoned distribution pynvml 13.0.1 is installed; remove it" in caplog.text


def test_a_driver_that_is_not_loaded_means_no_gpus() -> None:
    assert Nvml.open(NvmlStandIn(refuse_init=nvml_stand_in.NVMLError_DriverNotLoaded("Driver Not Loaded"))) is None


async def test_two_cards_with_links() -> None:
    async with devices_of(two_cards()) as devices:
        first, second = devices.list()
    assert first == Device(
        id="GPU-aaaa",
        kind=DeviceKind.GPU,
        name="Stand-in H0",
        memory_total=79 * GIB,
        memory_used=0,
        utilisation=0.3,
        numa_node=0,
        compute_capability="9.0",
        driver="580.1",
        cores=(0, 1, 64),
        links=(Link(peer="GPU-bbbb", kind="nvlink", lanes=4),),
    )
    assert (second.numa_node, second.links) == (1, (Link(peer="GPU-aaaa", kind="nvlink", lanes=4),))


async def test_cards_behind_switches_reach_each_other_with_the_lanes_of_the_lesser() -> None:
    cards = [Card(f"GPU-{n}", bus=n + 1, lanes=("switch",) * lanes) for n, lanes in enumerate((18, 18, 6))]
    async with devices_of(NvmlStandIn(*cards)) as devices:
        links = {link.peer: link for link in devices.list()[0].links}
    assert (links["GPU-1"].lanes, links["GPU-2"].lanes) == (18, 6)


@pytest.mark.parametrize(
    ("level", "kind"), [(0, "pcie-switch"), (20, "pcie-switch"), (30, "pcie-host"), (40, "numa"), (50, "system")]
)
async def test_cards_without_nvlink_meet_where_their_buses_do(level: int, kind: str) -> None:
    async with devices_of(NvmlStandIn(Card("GPU-1", bus=1), Card("GPU-2", bus=2), ancestor=level)) as devices:
        assert devices.list()[0].links == (Link(peer="GPU-2", kind=kind),)


async def test_mig_instances_are_devices_and_holes_between_them_are_passed_over() -> None:
    async with devices_of(partitioned()) as devices:
        first, second = devices.list()
    assert (first.id, first.kind, first.parent) == ("MIG-1111", DeviceKind.MIG, "GPU-cccc")
    assert (first.memory_total, first.memory_used, first.utilisation) == (5 * GIB, GIB, None)
    assert (second.id, second.compute_capability) == ("MIG-2222", "9.0")


async def test_a_card_that_cannot_say_anything_is_still_a_card() -> None:
    async with devices_of(NvmlStandIn(Card("GPU-mute", bus=250, unsupported=frozenset({"all"})))) as devices:
        assert devices.list() == ()  # without even a handle there is nothing to place on
    mute = frozenset(name for name in dir(NvmlStandIn) if name.startswith("nvmlDeviceGet") and "Handle" not in name)
    async with devices_of(NvmlStandIn(Card("GPU-mute", bus=250, unsupported=mute))) as devices:
        (device,) = devices.list()
        assert (device.memory_total, device.utilisation, device.cores, device.compute_capability) == (0, None, (), "")
        assert devices.memory_used("GPU-mute") is None
        assert devices.process_bytes([os.getpid()]) == {"GPU-mute": None}


async def test_an_older_driver_tells_its_memory_in_the_first_form() -> None:
    old = frozenset({"nvmlDeviceGetMemoryInfo_v2"})
    async with devices_of(NvmlStandIn(Card("GPU-1", bus=1, used=GIB, unsupported=old))) as devices:
        assert (devices.list()[0].memory_total, devices.memory_used("GPU-1")) == (80 * GIB, GIB)


async def test_bytes_of_processes() -> None:
    """None where NVML says none, and where it counts in another namespace's numbers: a number without a process."""
    machine = two_cards()
    own, other = os.getpid(), os.getppid()
    machine.cards[0].processes = {own: 3 * GIB, other: GIB}
    async with devices_of(machine) as devices:
        assert devices.process_bytes([own]) == {"GPU-aaaa": 3 * GIB, "GPU-bbbb": 0}
        machine.cards[0].processes = {own: None}
        machine.cards[1].processes = {2**22 + 5: GIB}
        assert devices.process_bytes([own]) == {"GPU-aaaa": None, "GPU-bbbb": None}


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        (NvmlStandIn.nvmlEventTypeXidCriticalError, 79, "Xid 79"),
        (NvmlStandIn.nvmlEventTypeDoubleBitEccError, 0, "double-bit ECC"),
    ],
)
async def test_a_fault_cordons_the_device(kind: int, data: int, reason: str) -> None:
    machine, told = two_cards(), list[tuple[str, str]]()
    async with devices_of(machine, told) as devices:
        machine.post(machine.cards[1], kind, data)
        await until(lambda: told)
        assert told[0][0] == "GPU-bbbb"
        assert reason in told[0][1]
        assert [bool(device.cordoned) for device in devices.list()] == [False, True]
        machine.post(machine.cards[1], kind, data)  # told once
        machine.post(machine.cards[0], kind, data)
        await until(lambda: len(told) == 2)
        assert told[1][0] == "GPU-aaaa"
    assert machine.threads == {"nvml-events"}


async def test_a_programs_own_fault_does_not_cordon_and_a_recovery_that_is_over_neither() -> None:
    machine, told = two_cards(), list[tuple[str, str]]()
    async with devices_of(machine, told):
        machine.post(machine.cards[0], machine.nvmlEventTypeXidCriticalError, 31)
        machine.post(machine.cards[0], machine.nvmlEventTypeGpuRecoveryAction)
        machine.cards[1].recovery = 4
        machine.post(machine.cards[1], machine.nvmlEventTypeGpuRecoveryAction)
        await until(lambda: told)
    assert told == [("GPU-bbbb", "the driver asks to drain the GPU and reset it")]


async def test_a_fault_of_a_mig_instance_cordons_that_instance_and_one_of_its_card_all() -> None:
    machine, told = partitioned(), list[tuple[str, str]]()
    async with devices_of(machine, told) as devices:
        machine.post(machine.cards[0], machine.nvmlEventTypeXidCriticalError, 94, gpu_instance=9, compute_instance=0)
        await until(lambda: told)
        assert [bool(device.cordoned) for device in devices.list()] == [False, True]
        machine.post(machine.cards[0], machine.nvmlEventTypeXidCriticalError, 79)
        await until(lambda: len(told) == 2)
        assert [bool(device.cordoned) for device in devices.list()] == [True, True]


async def test_a_card_that_falls_off_the_bus_is_cordoned_and_the_others_are_watched_on() -> None:
    machine, told = two_cards(), list[tuple[str, str]]()
    async with devices_of(machine, told) as devices:
        machine.lose(machine.cards[0])
        await until(lambda: told)
        assert told[0] == ("GPU-aaaa", "the GPU has fallen off the bus; reboot the node")
        gone, other = sorted(await devices.refresh(), key=lambda device: device.id)
        assert (gone.id, bool(gone.cordoned), other.cordoned) == ("GPU-aaaa", True, "")
        machine.post(machine.cards[1], machine.nvmlEventTypeXidCriticalError, 48)
        await until(lambda: len(told) == 2)


async def test_a_card_whose_memory_has_no_spare_rows_left_is_cordoned() -> None:
    told: list[tuple[str, str]] = []
    async with devices_of(two_cards(rows=(3, 2, 0, 1)), told):
        assert told[0][0] == "GPU-bbbb"
        assert "2 rows with uncorrectable errors" in told[0][1]


async def test_a_partitioned_card_is_not_missed() -> None:
    machine, told = two_cards(), list[tuple[str, str]]()
    async with devices_of(machine, told) as devices:
        machine.cards[0].parts = (Part("MIG-9", total=GIB),)
        assert [device.id for device in await devices.refresh()] == ["MIG-9", "GPU-bbbb"]
    assert told == []


async def test_memory_that_comes_back_late_is_waited_for() -> None:
    machine, told = two_cards(), list[tuple[str, str]]()
    card, own = machine.cards[0], os.getpid()
    card.processes, card.used = {own: 10 * GIB, os.getppid(): 2 * GIB}, 12 * GIB
    async with devices_of(machine, told) as devices:
        expected = devices.baseline(["GPU-aaaa", "cpu-0"], [own])
        assert expected == {"GPU-aaaa": 2 * GIB}
        waiting = asyncio.create_task(devices.settled(["GPU-aaaa", "cpu-0"], [own], expected, 60))
        await asyncio.sleep(0.1)
        del card.processes[own]
        await asyncio.sleep(0.1)
        assert not waiting.done()
        card.used = 2 * GIB + 10 * MIB
        assert await waiting == ""
    assert told == []


@pytest.mark.parametrize(
    ("entries", "used", "reason"), [({}, 7 * GIB, "7168 MiB more than before"), ({os.getpid(): None}, 0, "still lists process")]
)
async def test_memory_that_does_not_come_back_cordons(entries: dict[int, int | None], used: int, reason: str) -> None:
    machine, told = two_cards(), list[tuple[str, str]]()
    machine.cards[0].processes, machine.cards[0].used = entries, used
    async with devices_of(machine, told) as devices:
        said = await devices.settled(["GPU-aaaa"], [os.getpid()], {"GPU-aaaa": 0}, 0.2)
        assert reason in said
        assert reason in devices.cordoned("GPU-aaaa")
    assert [device for device, _ in told] == ["GPU-aaaa"]


async def test_without_per_process_bytes_the_figure_from_before_the_start_is_the_baseline() -> None:
    machine = two_cards()
    machine.cards[0].processes, machine.cards[0].used = {os.getpid(): None}, 9 * GIB
    async with devices_of(machine) as devices:
        assert devices.baseline(["GPU-aaaa"], [os.getpid()], {"GPU-aaaa": GIB}) == {"GPU-aaaa": GIB}
        assert devices.baseline(["GPU-aaaa"], [os.getpid()]) == {}


@pytest.mark.parametrize(
    ("setting", "ids"),
    [
        (None, ["GPU-aaaa", "GPU-bbbb"]),
        ("", []),
        ("-1", []),
        ("1", ["GPU-bbbb"]),
        ("GPU-b", ["GPU-bbbb"]),
        ("1,GPU-aaaa", ["GPU-bbbb", "GPU-aaaa"]),
        ("0,7,1", ["GPU-aaaa"]),
        ("GPU-", []),
    ],
)
async def test_what_cuda_visible_devices_leaves(setting: str | None, ids: list[str]) -> None:
    async with devices_of(two_cards()) as devices:
        assert [device.id for device in visible_of(devices.list(), setting)] == ids


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (None, ""),
        ("", ""),
        ("-1", ""),
        ("MIG-1111,MIG-2", ""),
        (
            "MIG-7a1e2b3c-0000-5000-8000-9d4e5f6a7b8c",
            "names no device of this node by 'MIG-7a1e2b3c-0000-5000-8000-9d4e5f6a7b8c' (there are: MIG-1111, MIG-2222)",
        ),
        ("MIG-", "names several devices by 'MIG-' (there are: MIG-1111, MIG-2222)"),
        ("0,9", "by '9'"),
    ],
)
async def test_a_device_string_is_taken_as_it_is_and_said_where_it_names_nothing(setting: str | None, words: str) -> None:
    """Field case B60: a MIG instance's UUID is never read as a number, and a wrong one is not hidden behind another error."""
    machine = partitioned()
    async with devices_of(machine) as devices:
        found = hidden_by(devices.list(), setting)
    assert words in found
    assert bool(found) == bool(words)


async def test_the_agent_says_which_device_string_hides_what(caplog: pytest.LogCaptureFixture) -> None:
    devices = Devices(Nvml.open(two_cards()), on_cordon=lambda *_: None, visible="MIG-9", host=lambda: ())
    with caplog.at_level(logging.WARNING):
        await devices.start()
        await devices.refresh()
    await devices.stop()
    assert devices.list() == ()
    assert "'MIG-9'" in devices.hidden
    assert caplog.text.count("names no device of this node") == 1
