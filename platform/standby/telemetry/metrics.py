"""Every metric's name, labels and buckets, defined once: by meaning in the modules beside this one, read from here.

Labels come from the registry only (endpoint, instance and node names); anything a caller invents is ``other``.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

# ruff: noqa: F403 - all that these modules define is a metric's name, and would stand here twice
from standby.telemetry.metrics_aws import *
from standby.telemetry.metrics_bus import *
from standby.telemetry.metrics_controller import *
from standby.telemetry.metrics_gateway import *
from standby.telemetry.metrics_node import *
from standby.telemetry.metrics_registries import *
from standby.telemetry.metrics_traces import *

# All of them, for whoever reads or documents them; each process exposes its own.
REGISTRY: Final = CollectorRegistry()
for _metric in tuple(globals().values()):
    if isinstance(_metric, MetricWrapperBase):
        REGISTRY.register(_metric)
