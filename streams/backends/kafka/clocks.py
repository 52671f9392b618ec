"""A writer's clock that is too far from the broker's for a topic that keeps the writers' times.

rftd creates its topics with the broker's times (`topics.configs_of`). A topic that is older, or was created by somebody
else, may keep the writers': then its broker refuses whatever is dated too far from its own clock. The answer holds no
more than that, so the bounds are read from the topic's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rftd.ops.clock import Clock, iso
from rftd.ops.errors import RftdError, UnreachableError
from rftd.streams.backends.kafka.settings import KafkaSettings
from rftd.streams.backends.kafka.topics import BROKER_TIME, TIMESTAMP_TYPE, setting_command, settings_of

_ANY_MS: Final = 2**63 - 1
"""A bound of Kafka's that bounds nothing."""
_UNITS_MS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_AHEAD: Final = "message.timestamp.after.max.ms"
_BEHIND: Final = "message.timestamp.before.max.ms"
_EITHER: Final = "message.timestamp.difference.max.ms"  # before Kafka 3.6


async def refused_time(settings: KafkaSettings, topic: str, clock: Clock) -> UnreachableError:
    """The error of an append whose time the broker refused: worth another try, for both causes can be mended meanwhile.

    `topic` is as the cluster names it, `clock` the one that dated the records.
    """
    now_ns = clock.now_ns()
    try:
        configs = await settings_of(settings, topic)
    except RftdError:  # it may not look, or the cluster is gone again: the cause is known without
        configs = {}
    return UnreachableError(
        f"Kafka refused records of {topic} for their time: this machine's clock ({iso(now_ns)}) is"
        f" {difference(configs)}",
        where=f"Kafka at {settings.bootstrap}",
        fix="set the clock that is wrong, or let the broker date the records of each topic that `rftd doctor --kafka`"
        f" names: {setting_command(topic, TIMESTAMP_TYPE, BROKER_TIME)}",
    )


def difference(configs: Mapping[str, str]) -> str:
    """The difference of the two clocks, as far as a topic's settings tell it."""
    either_ms = configs.get(_EITHER, str(_ANY_MS))
    ahead_ms = int(configs.get(_AHEAD, either_ms))
    behind_ms = int(configs.get(_BEHIND, either_ms))
    bounds = [f"more than {_span(ahead_ms)} ahead of the broker's"] if ahead_ms < _ANY_MS else []
    if behind_ms < _ANY_MS:
        bounds.append(f"more than {_span(behind_ms)} behind the broker's")
    return " or ".join(bounds) or "too far from the broker's"


def _span(span_ms: int) -> str:
    """A span of time in the largest unit that fits it: `1 h`, `90 min`."""
    for unit_ms, name in _UNITS_MS:
        if span_ms and span_ms % unit_ms == 0:
            return f"{span_ms // unit_ms} {name}"
    return f"{span_ms} ms"
