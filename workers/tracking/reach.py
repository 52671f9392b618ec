"""`check_tracker_reach` restricts a tracker's keys to the hosts allowed for the experiment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from rftd.ops.errors import ConfigError
from rftd.ops.outbound import web_address
from rftd.streams.spec.engines import ReachSpec
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.registry import variables_of

_ADDRESSES: Final = ("base_url", "uri")
"""The arguments with a tracker's destination address."""
_CREDENTIALS: Final = ("KEY", "USERNAME", "PASSWORD", "TOKEN")
"""Suffixes of variables that a tracker sends to that address by itself."""


def check_tracker_reach(
    reach: ReachSpec, tracker: TrackerSpec, args: Mapping[str, Any], variables: Collection[str]
) -> None:
    """Raises ConfigError unless the address in `args`, if any, is allowed, together with every key sent there.

    `variables` are the names of existing variables. The error contains neither the address nor a value.
    """
    if not reach.restricted:
        return
    for name in _ADDRESSES:
        if name not in args:
            continue
        field = f"monitor.monitor_args.{name}"
        variable = tracker.variables.get(name, "")
        try:
            reach.check(str(args[name]), field=field, variable=variable)
            address = web_address(str(args[name]), field=field)
        except ConfigError:
            raise _withheld(tracker, variable or "its address", field) from None
        for key in _keys(tracker, variables):
            if not reach.may_send(key, address):
                raise _withheld(tracker, key, field)


def _keys(tracker: TrackerSpec, variables: Collection[str]) -> list[str]:
    """Returns the variables sent by the tracker: variables of arguments, and variables read automatically."""
    argument_variables = [variable for name, variable in tracker.variables.items() if name not in _ADDRESSES]
    read_variables = [name for name in variables_of(tracker.kind) if name.endswith(_CREDENTIALS) and name in variables]
    return [*argument_variables, *read_variables]


def _withheld(tracker: TrackerSpec, secret: str, field: str) -> ConfigError:
    """Returns the error for a secret that must not be sent."""
    return ConfigError(
        f"the daemon's configuration does not allow the tracker {tracker.kind!r} to send {secret} to this address",
        field=field,
        fix="ask the daemon's owner for the line `secrets: {NAME: [HOST]}`, with the host, in its configuration",
    )
