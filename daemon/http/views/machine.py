"""The machine of the workers: its devices and their memory, the engines and the sandboxes that run on it."""

from __future__ import annotations

import msgspec

from rftd.daemon.http.views.memory import MemoryRow
from rftd.daemon.http.views.route import Daemon, read
from rftd.ops.health import Diagnosis
from rftd.workers.devices.host import Device

_TAG = "system"
"""Chapter of the OpenAPI document with these routes."""


class RunMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a live experiment's workers against their devices."""

    experiment: str
    """Id of the experiment."""
    name: str
    """Name of the experiment."""
    rows: list[MemoryRow]
    """Workers by role and stage: expected peak, and present use."""


class MachineView(msgspec.Struct, frozen=True, kw_only=True):
    """The machine or cluster of the workers started by the daemon."""

    seen: bool
    """False if the workers run on machines that the daemon cannot inspect."""
    devices: tuple[Device, ...]
    """Devices of all machines."""
    no_gpu: str
    """Reason why there is no GPU; empty if there is one."""
    packages: dict[str, str]
    """Versions of the installed engine packages."""
    engines: list[Diagnosis]
    """Findings of `rftd doctor` about engines and launchers; empty for machines that the daemon cannot inspect."""
    sandboxes: list[Diagnosis]
    """Findings of `rftd doctor` about the isolations of sandboxes on the daemon's machine."""
    memory: list[RunMemory]
    """Memory of the workers of live experiments."""


@read("/v1/machine", MachineView, tag=_TAG)
async def machine(daemon: Daemon) -> MachineView:
    """The machine of the workers: devices, engines, sandboxes, and the memory of live experiments' workers."""
    import asyncio  # not above: the command line imports this module, and needs no event loop to check a file
    from uuid import UUID

    from rftd.storage.queries.live import live_experiments

    host = await asyncio.to_thread(daemon.operations.host)
    async with daemon.read() as connection:
        live = await live_experiments(connection)
    memory = [RunMemory(experiment=row.id, name=row.name, rows=daemon.memory(UUID(row.id))) for row in live]
    return MachineView(
        seen=host.seen,
        devices=host.devices,
        no_gpu=host.no_gpu,
        packages=dict(sorted(host.packages.items())),
        engines=await daemon.abilities.engines(host) if host.seen else [],
        sandboxes=await daemon.abilities.sandboxes(),
        memory=[experiment for experiment in memory if experiment.rows],
    )
