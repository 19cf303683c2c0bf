"""The AWS side of a gateway: the copy of what AWS clients have created, who may come in, and the control plane over both."""

from __future__ import annotations

import asyncio
from functools import partial

from standby.bus.lanes import Lanes
from standby.bus.mirror import Mirror
from standby.gateway.api.context import ApiContext
from standby.gateway.authn import authenticator_of
from standby.gateway.dataplane import RuntimeOptions
from standby.gateway.directory import Directory
from standby.gateway.http import UploadRoom, read_or_gone
from standby.gateway.settings import GatewaySettings
from standby.sagemaker.control.background import Background
from standby.sagemaker.control.context import ControlContext
from standby.sagemaker.control.inspection import Inspector
from standby.sagemaker.control.operations import operations
from standby.sagemaker.control.records import Copies, Records
from standby.sagemaker.dispatch import ControlPlane
from standby.sagemaker.runtime.async_context import AsyncContext
from standby.sagemaker.shapes.paging import Pager
from standby.sagemaker.shapes.services import load_all


class AwsSide:
    """Make it before the data plane, which asks it who calls; ``start`` it after the directory, ``stop`` it before."""

    def __init__(self, api: ApiContext, directory: Directory, settings: GatewaySettings) -> None:
        self._api = api
        self._settings = settings
        self._audit = api.audit
        self.resources = Mirror(api.tables.aws)
        self._records = Records(
            api.tables,
            Copies(
                models=directory.models,
                endpoint_configs=directory.configs,
                endpoints=directory.endpoints,
                instances=directory.instances,
                nodes=directory.nodes,
                aws=self.resources,
            ),
            api.events,
            api.source,
            api.now,
        )
        self._background = Background(self._records, Inspector(self._records, api.inspect, api.sealing))
        self.authenticator = authenticator_of(
            directory, api.sealing, api.pepper, self._audit, trust_s=api.key_trust_s, region=api.region
        )

    async def start(self) -> None:
        """Read AWS's models and the copy of what there is. Raises BusUnavailable."""
        await asyncio.to_thread(load_all)
        await self.resources.start()
        await self._background.start()

    async def stop(self) -> None:
        """End; what is not finished is taken up by another gateway."""
        await self._background.stop()
        await self.resources.stop()

    def staleness(self) -> dict[str, float]:
        """Return the age of the copy in seconds, by its table's name."""
        return {"aws": self.resources.staleness(self._api.clock())}

    def runtime_options(self) -> RuntimeOptions:
        """Return what the endpoints' own routes need."""
        settings = self._settings
        return RuntimeOptions(
            region=self._api.region,
            serverless_body_bytes=settings.serverless_body_bytes,
            invocation_limit_s=settings.invocation_limit_s,
            stream_limit_s=settings.stream_limit_s,
            linger_s=settings.retry_linger_s,
            kept_s=settings.retry_kept_s,
            kept_bytes=settings.retry_kept_bytes,
            authenticator=self.authenticator,
            resources=self.resources,
            strict=settings.aws_strict,
            asynchronous=self._asynchronous(),
            heartbeat_s=settings.stream_heartbeat_s or None,
            shadow_by_tenants=settings.shadow_by_tenants,
        )

    def _asynchronous(self) -> AsyncContext:
        api, settings, copies = self._api, self._settings, self._records.copies
        return AsyncContext(
            lanes=Lanes(api.bus, "async", max_bytes=settings.async_queue_bytes),
            tables=api.tables,
            endpoints=copies.endpoints,
            configs=copies.endpoint_configs,
            models=copies.models,
            publish=api.events.publish,
            source=api.source,
            sealing=api.sealing,
            region=api.region,
            body_bytes=settings.async_body_bytes,
            open_sources=settings.open_sources,
            locations=tuple(settings.async_locations.split()),
            now=api.now,
        )

    def control_plane(self, uploads: UploadRoom) -> ControlPlane:
        """Return the application of ``POST /``; its bodies count in the same room as those of the data plane."""
        context = ControlContext(
            records=self._records,
            background=self._background,
            quotas=self._api.quotas,
            pager=Pager(self._api.pepper),
            region=self._api.region,
            strict=self._settings.aws_strict,
            changing=self._api.changing,
        )
        return ControlPlane(
            self.authenticator.authenticate,
            operations(context),
            partial(read_or_gone, uploads),
            self._audit.control,
            self._api.now,
        )
