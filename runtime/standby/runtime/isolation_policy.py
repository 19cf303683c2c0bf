"""Which tenants may compute on one device."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from standby.domain.node import Device, DeviceKind


class DeviceSharing(StrEnum):
    """``exclusive-tenant``: a GPU or MIG instance serves one tenant at a time; ``shared``: anyone beside anyone."""

    EXCLUSIVE_TENANT = "exclusive-tenant"
    SHARED = "shared"


def may_share(device: Device, tenant: str, occupants: Collection[str], sharing: DeviceSharing) -> tuple[bool, str]:
    """Return whether ``tenant`` may use the device beside ``occupants`` (tenants of its engines, asleep ones too), and why.

    The memory of a GPU is not erased between processes and its caches and timing leak: only MIG instances have walls, and
    those are devices of their own here. Processors have an operating system between processes.
    """
    others = sorted(set(occupants) - {tenant})
    if not others:
        return True, "no other tenant is on it"
    if device.kind is DeviceKind.CPU:
        return True, "processes of different tenants are kept apart by the operating system"
    if sharing is DeviceSharing.SHARED:
        return True, f"tenants share devices here; tenant {others[0]} is on it"
    thing = "MIG instance" if device.kind is DeviceKind.MIG else "GPU"
    return False, f"{thing} {device.id} belongs to tenant {others[0]} as long as an engine of theirs is on it"
