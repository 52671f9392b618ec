"""Rights on a cluster with access control: the rights needed by each role, and the rights of a user.

The table equals the one in docs/production.md. A broker reports a user's operations on each topic (metadata, version
8); a broker without such a report, or without access control, is no reason to complain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from rftd.streams.events.catalogue import definitions
from rftd.streams.events.registry import TRAINER
from rftd.streams.log import topics

READ: Final = "Read"
"""Kafka's operation of reading records."""
WRITE: Final = "Write"
"""Kafka's operation of appending records."""
DESCRIBE: Final = "Describe"
"""Kafka's operation of reading offsets and partitions."""
DESCRIBE_CONFIGS: Final = "DescribeConfigs"
"""Kafka's operation of reading a topic's settings."""
_BITS: Final = {READ: 3, WRITE: 4, DESCRIBE: 8, DESCRIBE_CONFIGS: 10}
"""Kafka's number of each operation, and its bit in a broker's report."""
_EVERYBODY: Final = (DESCRIBE, DESCRIBE_CONFIGS, READ)
"""Operations needed by every role on every topic."""
_RIGHTS_NOT_REPORTED: Final = -(1 << 31)
"""The broker's value for rights that it does not report."""
_FORBIDDEN: Final = 29
"""Kafka's number of the error for a forbidden topic."""

_WORKER_STREAMS: Final = frozenset({topics.WORKERS, topics.HEARTBEATS})
"""Streams to which every worker appends."""
WRITES: Final[Mapping[str, frozenset[str]]] = {
    "daemon": frozenset(topics.TOPICS),
    "trainer": _WORKER_STREAMS | {definition.stream for definition in definitions() if definition.owner == TRAINER},
    "explorer": _WORKER_STREAMS | {topics.EXPERIENCES, topics.WEIGHTS},
}
"""Streams written by each role; a daemon's user writes all, because it may also run workers."""


class Right(msgspec.Struct, frozen=True, order=True):
    """One operation on one topic."""

    topic: str
    """The topic's name on the cluster."""
    operation: str
    """Kafka's name of the operation."""


Allowed = Mapping[str, frozenset[str]]
"""Operations allowed to the user on each topic, as reported by the broker."""


def missing_rights(role: str, allowed: Allowed, prefix: str) -> Iterator[Right]:
    """Yields the rights needed by the role and not allowed to the user; topics the broker reported nothing about are
    skipped.
    """
    for stream in topics.TOPICS:
        name = prefix + stream
        if name not in allowed:
            continue
        needed = [*_EVERYBODY, *([WRITE] if stream in WRITES[role] else [])]
        yield from (Right(name, operation) for operation in needed if operation not in allowed[name])


def in_words(rights: Iterable[Right]) -> str:
    """Returns the rights as text, grouped by operation; empty for none."""
    operations: dict[str, list[str]] = {}
    for right in rights:
        operations.setdefault(right.topic, []).append(right.operation)
    named: dict[str, list[str]] = {}
    for topic, of_topic in operations.items():
        named.setdefault(", ".join(of_topic), []).append(topic)
    return "; ".join(f"{operations_text} on {', '.join(topic_names)}" for operations_text, topic_names in named.items())


async def allowed_operations(admin: AIOKafkaAdminClient, prefix: str) -> Allowed:
    """Reads the user's rights on each existing topic of the log. Raises the errors of aiokafka."""
    answer: Any = await admin._send_request(_AskRights([prefix + stream for stream in topics.TOPICS]))
    allowed: dict[str, frozenset[str]] = {}
    for code, name, _internal, _partitions, bits in answer.topics:
        if code == _FORBIDDEN:
            allowed[name] = frozenset()
        elif code == 0 and bits != _RIGHTS_NOT_REPORTED:
            allowed[name] = frozenset(operation for operation, bit in _BITS.items() if bits >> bit & 1)
    return allowed


class _RightsAnswer(Response):  # type: ignore[misc]
    """Kafka's answer about topics, with the user's operations as bits."""

    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(("node_id", Int32), ("host", String("utf-8")), ("port", Int32), ("rack", String("utf-8"))),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("authorized_operations", Int32),
    )


class _RightsRequest(RequestStruct):  # type: ignore[misc]
    """Kafka's request about topics, with the user's operations."""

    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _RightsAnswer
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _AskRights(Request[_RightsRequest]):  # type: ignore[misc]
    """Metadata of several topics, with the user's operations on each; aiokafka itself never requests those."""

    API_KEY = 3

    def __init__(self, names: list[str]) -> None:
        """Creates the request about the topics `names`."""
        self._names = names

    def build(self, request_struct_class: type[_RightsRequest]) -> _RightsRequest:
        """Returns the request as a structure of Kafka's protocol."""
        return request_struct_class(self._names, False, False, True)
