"""`Abilities`: the engines and sandboxes that the machine of a daemon can run, for its API."""

from __future__ import annotations

import asyncio
import os

from rftd.daemon.observe.doctor.engines import check_engines, check_ray, check_tinker
from rftd.daemon.observe.doctor.sandboxes import check_sandboxes
from rftd.ops.health import Diagnosis
from rftd.workers.devices.host import Host


class Abilities:
    """Implements `MachineAbilities` by the checks of `rftd doctor`, without asking a server."""

    def __init__(self) -> None:
        """Begins without findings."""
        self._checking = asyncio.Lock()
        self._sandboxes: list[Diagnosis] | None = None
        """Findings about sandboxes, made once: a kernel does not change its mind."""

    async def engines(self, host: Host) -> list[Diagnosis]:
        """Returns the findings about engines and launchers on the workers' machine."""
        return await asyncio.to_thread(
            lambda: [*check_engines(host), *check_ray(host), *check_tinker(host, os.environ)]
        )

    async def sandboxes(self) -> list[Diagnosis]:
        """Returns the findings about sandboxes; the first call takes the time of a command in one."""
        async with self._checking:
            if self._sandboxes is None:
                self._sandboxes = await asyncio.to_thread(check_sandboxes)
            return self._sandboxes
