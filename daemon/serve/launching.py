"""`Launching`: the roles of workers started by a daemon, and the launcher of each role."""

from __future__ import annotations

import os

import msgspec

from rftd.daemon.serve.data_folder import DataFolder
from rftd.ops.ids import Ids
from rftd.ops.logs import Logger
from rftd.ops.own_folder import FolderAccess
from rftd.ops.tracing.trace_options import HEADERS, TraceOptions
from rftd.streams.log.backend import backend_of
from rftd.streams.log.backend import log_url as parsed_log_url
from rftd.streams.spec.split_submission import EXPLORER, ROLES
from rftd.workers.devices.discovery import find_host
from rftd.workers.devices.host import ANY_HOST, Host
from rftd.workers.hosts.by_role import ExecutorByRole
from rftd.workers.hosts.environment import WorkerEnvironment
from rftd.workers.hosts.executor import Executor
from rftd.workers.hosts.local import LocalExecutor
from rftd.workers.hosts.ray.launcher import RayExecutor, RayOptions
from rftd.workers.hosts.ray.open_cluster import open_defaults


class Launching(msgspec.Struct, frozen=True, kw_only=True):
    """Where a daemon's workers run, by role: on this machine, on a Ray cluster, or started by others."""

    roles: frozenset[str] = ROLES
    """Roles of workers started by this daemon; empty if all workers are started by others."""
    on_ray: frozenset[str] = frozenset()
    """Roles of workers started as actors of a Ray cluster; others are processes of this machine."""
    ray: RayOptions = RayOptions()
    """Options of the Ray cluster."""
    pass_env: tuple[str, ...] = ()
    """Patterns of the daemon's variables passed to every worker, in addition to the required ones."""

    @property
    def decides(self) -> bool:
        """True if this daemon decides on experiments; False if it only starts explorers for another daemon's."""
        return self.roles != {EXPLORER}


def launchers_of(
    launching: Launching,
    log_url: str,
    folder: DataFolder,
    *,
    ids: Ids,
    logger: Logger,
    traces: TraceOptions | None,
    folders: FolderAccess = FolderAccess.PRIVATE,
) -> Executor:
    """Returns the launcher of a daemon's workers, connected to the log at `log_url`."""
    environment = environment_of(launching, log_url, traces=traces)

    def local() -> Executor:
        look = find_host if launching.roles == ROLES else _unseen
        return LocalExecutor(
            log_url, home=str(folder.root), host=look, environment=environment, traces=traces, folders=folders
        )

    if not launching.on_ray:
        return local()
    for default in open_defaults(os.environ, launching.ray.address):
        logger.warning("ray.open", subject=default.subject, what=default.what, fix=default.fix)
    on_ray = RayExecutor(
        log_url,
        launching.ray,
        ids=ids,
        logger=logger,
        driver_log=folder.root / "ray.log",
        environment=environment,
        traces=traces,
        roles=launching.on_ray,
    )
    if launching.on_ray == launching.roles:
        return on_ray
    local_executor = local()
    return ExecutorByRole({role: on_ray if role in launching.on_ray else local_executor for role in ROLES})


def environment_of(launching: Launching, log_url: str, *, traces: TraceOptions | None) -> WorkerEnvironment:
    """Returns the part of the daemon's environment passed to the processes it starts."""
    url = parsed_log_url(log_url)
    needed = (*backend_of(url).variables(url), *(HEADERS if traces is not None else ()))
    ours = ("OTEL_*",) if traces is not None else ()
    return WorkerEnvironment(needed=needed, pass_env=(*launching.pass_env, *ours))


def _unseen() -> Host:
    """Returns an unknown host, because externally started workers run on uninspected machines."""
    return ANY_HOST
