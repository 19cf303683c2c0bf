"""One deployment for each module; ``GATEWAYS`` and ``ENVIRONMENT`` of the module say which."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.deployment import Deployment, deployment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    """A running deployment; after the module's last test none of its processes may be left."""
    gateways: int = getattr(request.module, "GATEWAYS", 1)
    environment: dict[str, str] = getattr(request.module, "ENVIRONMENT", {})
    folder = tmp_path_factory.mktemp("deployment")
    async with deployment(folder, gateways=gateways, environment=environment) as running:
        yield running
