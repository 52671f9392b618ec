"""`check_tracker_reach` holds a tracker to the hosts that the verdict on its experiment allows for its keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from rftd.ops.errors import ConfigError
from rftd.ops.outbound import web_address
from rftd.streams.spec.reach import ReachSpec
from rftd.streams.spec.tracking import TrackerSpec
from rftd.workers.tracking.registry import variables_of

_ADDRESSES: Final = ("base_url", "uri")
"""The arguments that name where a tracker sends."""
_CREDENTIALS: Final = ("KEY", "USERNAME", "PASSWORD", "TOKEN")
"""The ends of the names of variables whose values a tracker sends there by itself."""


def check_tracker_reach(
    reach: ReachSpec, tracker: TrackerSpec, args: Mapping[str, Any], variables: Collection[str]
) -> None:
    """Returns if the address in `args`, if any, may be reached, and gets every key that the tracker would send there.

    `variables` are those that are set. Raises ConfigError, which tells neither the address nor a value.
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
    """The variables whose values the tracker would send: those that it is given, and those that it reads by itself."""
    written = [variable for name, variable in tracker.variables.items() if name not in _ADDRESSES]
    own = [name for name in variables_of(tracker.kind) if name.endswith(_CREDENTIALS) and name in variables]
    return [*written, *own]


def _withheld(tracker: TrackerSpec, what: str, field: str) -> ConfigError:
    return ConfigError(
        f"the daemon's configuration does not allow the tracker {tracker.kind!r} to send {what} to this address",
        field=field,
        fix="ask the daemon's owner for the line `secrets: {NAME: [HOST]}`, with the host, in its configuration",
    )
