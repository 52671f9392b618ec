"""The options for the workers started by a daemon, and their hosts: `--workers`, `--ray-address`, ..., `--roles`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

from rftd.daemon.cli.option_group import option_group
from rftd.ops.errors import ConfigError, UsageError
from rftd.ops.redaction import is_plain_variable

if TYPE_CHECKING:
    from rftd.daemon.serve.launching import Launching
    from rftd.workers.hosts.ray.launcher import RayOptions

LOCAL: Final = "local"
"""Word of `--workers`: workers start on the daemon's machine."""
ON_RAY: Final = "ray"
"""Word of `--workers`: workers start on a Ray cluster."""
EXTERNAL: Final = "external"
"""Word of `--workers`: workers are started by other programs."""
_ROLES: Final = ("explorer", "trainer")
"""Roles of the workers that a daemon may start."""
_PATTERN: Final = re.compile(r"[A-Za-z0-9_*?]+")
"""Form of a pattern of variable names."""


class WorkersOption(click.ParamType[dict[str, str]]):
    """Hosts of each role's workers: one word for all roles, or `ROLE=WORD` for each."""

    name = "where"
    """Name of the type in usage errors."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        """Returns the word of each role; fails for an unknown word or an incomplete list of roles."""
        if isinstance(value, dict):
            return value
        if value in (LOCAL, ON_RAY, EXTERNAL):
            return dict.fromkeys(_ROLES, value)
        pairs = [pair.strip().partition("=") for pair in str(value).split(",")]
        word_by_role = {role: word for role, _, word in pairs}
        if (
            len(pairs) != len(_ROLES)
            or word_by_role.keys() != set(_ROLES)
            or set(word_by_role.values()) - {LOCAL, ON_RAY}
        ):
            self.fail(
                f"{value!r} is neither {LOCAL}, {ON_RAY} nor {EXTERNAL}, and does not say {LOCAL} or {ON_RAY} for each "
                f"role, as in explorer={ON_RAY},trainer={LOCAL}; workers of one role alone: --roles",
                param,
                ctx,
            )
        return word_by_role


_OPTIONS: Final = (
    click.option(
        "--workers",
        type=WorkersOption(),
        default=LOCAL,
        show_default=True,
        envvar="RFTD_WORKERS",
        help="Where workers run: here (local), on a Ray cluster (ray), or wherever you start them (external). For "
        "each role: explorer=ray,trainer=local.",
    ),
    click.option(
        "--ray-address",
        default="auto",
        show_default=True,
        metavar="ADDRESS",
        envvar="RFTD_RAY_ADDRESS",
        help="Ray cluster of --workers ray: HOST:PORT, auto, or local for one on this machine only.",
    ),
    click.option(
        "--ray-runtime-env",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        envvar="RFTD_RAY_RUNTIME_ENV",
        help="Runtime environment of Ray for all workers, as a YAML file.",
    ),
    click.option(
        "--roles",
        type=click.Choice(["trainer", "explorer", "both"]),
        default="both",
        show_default=True,
        envvar="RFTD_ROLES",
        help="Workers that this daemon starts. With explorer only, another daemon on the same log makes the decisions.",
    ),
    click.option(
        "--pass-env",
        multiple=True,
        metavar="PATTERN",
        envvar="RFTD_PASS_ENV",
        help="Variable of the daemon's that workers get too, such as WANDB_* for a plug-in. Repeatable.",
    ),
)
"""Options for starting workers, in the order of the help."""


def _launching(
    workers: dict[str, str], ray_address: str, ray_runtime_env: str | None, roles: str, pass_env: tuple[str, ...]
) -> Launching:
    """Returns the launching options. Raises UsageError, ConfigError."""
    from rftd.daemon.serve.launching import Launching

    patterns = _patterns(pass_env)
    started = _roles_started_here(workers, roles)
    on_ray = frozenset(role for role in started if workers[role] == ON_RAY)
    if not on_ray:
        return Launching(roles=started, pass_env=patterns)
    return Launching(roles=started, on_ray=on_ray, ray=_ray(ray_address, ray_runtime_env), pass_env=patterns)


launching_options: Final = option_group("launching", _OPTIONS, _launching)
"""Adds the options to `rftd serve`, passed as `launching`."""


def _patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Checks and returns patterns of variable names. Raises UsageError for an impossible pattern."""
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise UsageError(
                "is neither a variable name nor a pattern of names", field="--pass-env", fix="write NAME, or NAME_*"
            )
    return patterns


def _roles_started_here(workers: dict[str, str], roles: str) -> frozenset[str]:
    """Returns the roles with workers started by the daemon. Raises UsageError."""
    if EXTERNAL not in workers.values():
        return frozenset(workers if roles == "both" else (roles,))
    if roles != "both":
        raise UsageError(f"{roles}s are not started with --workers external", field="--roles", fix="leave one out")
    return frozenset()


def _ray(address: str, runtime_env: str | None) -> RayOptions:
    """Returns the options of a Ray cluster.

    Raises UsageError if Ray is not installed, and ConfigError for a runtime environment other than a mapping.
    """
    from pathlib import Path

    import yaml

    from rftd.workers.devices.discovery import installed_packages
    from rftd.workers.devices.engine_build import RAY, how_to_install
    from rftd.workers.hosts.ray.launcher import RayOptions

    # Otherwise the driver would fail at its import, again and again, while the daemon looks able to place workers.
    if RAY not in installed_packages():
        raise UsageError(
            "is ray, and Ray is not installed in this environment", field="--workers", fix=how_to_install(RAY)
        )
    if runtime_env is None:
        return RayOptions(address=address)
    try:
        read = yaml.safe_load(Path(runtime_env).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(str(error), where=runtime_env, field="--ray-runtime-env", fix="write YAML") from error
    if not isinstance(read, dict):
        raise ConfigError(
            "is no mapping", where=runtime_env, field="--ray-runtime-env", fix="write fields of Ray's runtime_env"
        )
    for name, variable in (read.get("env_vars") or {}).items():
        if not is_plain_variable(str(name), variable):
            raise ConfigError(
                f"{name} is like a secret, and Ray shows a runtime environment to everybody who sees its dashboard",
                where=runtime_env,
                field="--ray-runtime-env",
                fix=f"leave it out, export it where the daemon runs, and serve with --pass-env {name}",
            )
    return RayOptions(address=address, runtime_env=read)
