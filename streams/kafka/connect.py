"""The border to aiokafka: arguments from a cluster's settings, and aiokafka's errors and log lines translated for rftd.

An unusable cluster is an error with its fix. While a broker is away aiokafka's clients would write an error with a
traceback several times a second: they are reduced to one warning per kind of trouble and half minute, without
traceback.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from typing import Any, Final

from aiokafka import errors as kafka
from aiokafka.conn import create_conn

from rftd.ops.errors import CodecError, ConfigError, LogCorruptError, RftdError, UnreachableError
from rftd.streams.kafka.settings import KafkaSettings

CLIENT_ID: Final = "rftd"
"""Name under which rftd appears in a broker's logs."""
REQUEST_TIMEOUT_S: Final = 10.0
"""Seconds to wait for one answer; several attempts fit into the minute of an append's retries."""
_LIST_OFFSETS: Final = 2  # Kafka's number of that request; its version 7 came with Kafka 3.0
"""Kafka's number of the request for the offsets of partitions."""
_OLDEST_LIST_OFFSETS: Final = 7
"""The oldest accepted version of that request."""
IN_SYNC: Final = "check that its brokers run and enough replicas are in sync"
"""Fix for a cluster without an answer or acknowledgement: absent brokers, or too few replicas in sync."""
_WHERE: Final = "Kafka at {}"
"""Form of an error's place, filled with the brokers' addresses."""


def arguments(settings: KafkaSettings) -> dict[str, Any]:
    """Returns the arguments shared by all clients of aiokafka.

    Raises ConfigError for a missing password or an unusable TLS file.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap.split(","),
        "client_id": CLIENT_ID,
        "security_protocol": settings.security,
        "request_timeout_ms": int(REQUEST_TIMEOUT_S * 1000),
        "retry_backoff_ms": 100,
        "metadata_max_age_ms": 60_000,
    }
    if settings.tls:
        options["ssl_context"] = _tls(settings)
    if settings.sasl:
        # Read when connecting and stored nowhere: settings travel to workers and into log lines.
        password = os.environ.get(settings.password_env)
        if not password:
            raise ConfigError(
                f"no password for the Kafka user {settings.username!r}",
                where=_where(settings),
                field="password_env",
                fix=f"set the environment variable {settings.password_env}",
            )
        options |= {
            "sasl_mechanism": settings.mechanism,
            "sasl_plain_username": settings.username,
            "sasl_plain_password": password,
        }
    return options


def _tls(settings: KafkaSettings) -> ssl.SSLContext:
    """Returns the TLS context of the settings; raises ConfigError for unreadable certificates."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"a file for TLS cannot be used: {error}",
            where=", ".join(filter(None, (settings.ca_file, settings.cert_file, settings.key_file))),
            fix="ca_file: PEM of the authority; cert_file and key_file: PEM of this client, without a passphrase",
        ) from error
    return context


async def check_cluster(settings: KafkaSettings) -> None:
    """Returns if the first broker that accepts a connection is new enough.

    Raises ConfigError for wrong credentials or TLS and for a broker older than Kafka 3.0; UnreachableError if none
    accepts, with the reason of the last one.
    """
    # One connection by hand: aiokafka's clients only log each broker's reason for a refusal, a wrong password for
    # instance, and then raise an error about unreachable brokers.
    options = arguments(settings)
    hosts = options.pop("bootstrap_servers")
    for name in ("retry_backoff_ms", "metadata_max_age_ms"):
        del options[name]
    last_error: BaseException | None = None
    for text in hosts:
        host, _, port = text.rpartition(":")
        try:
            connection = await create_conn(host.strip("[]"), int(port), **options)
        except (kafka.KafkaError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            last_error = error
            continue
        try:
            _check_version(connection, settings, text)
        finally:
            connection.close()
        return
    assert last_error is not None
    raise translate(last_error, settings) from last_error


def _check_version(connection: Any, settings: KafkaSettings, host: str) -> None:
    # aiokafka has no public name for the broker's answer; without it the check rejects every broker.
    """Raises ConfigError for a broker older than Kafka 3.0."""
    versions = getattr(connection, "_versions", {})
    newest = versions.get(_LIST_OFFSETS, (0, 0))[1]
    if newest < _OLDEST_LIST_OFFSETS:
        raise ConfigError(
            f"the broker {host} is older than Kafka 3.0", where=_where(settings), fix="use Kafka 3.0 or newer"
        )


def translate(error: BaseException, settings: KafkaSettings) -> RftdError:
    """Translates an error of aiokafka into an error of rftd, with a fix for a person."""
    where = _where(settings)
    text = str(error) or type(error).__name__
    match error:
        case RftdError():
            return error
        case kafka.AuthenticationFailedError() | kafka.SaslAuthenticationFailed():
            return ConfigError(
                f"Kafka refused the user {settings.username!r}: {text}",
                where=where,
                field="username",
                fix=f"check the user, ${settings.password_env} and the mechanism ({settings.mechanism})",
            )
        case kafka.UnsupportedSaslMechanismError():
            return ConfigError(
                f"Kafka does not support {settings.mechanism}: {text}",
                where=where,
                field="mechanism",
                fix="find out the listener's mechanism; rftd supports PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512",
            )
        case (
            kafka.TopicAuthorizationFailedError()
            | kafka.ClusterAuthorizationFailedError()
            | kafka.GroupAuthorizationFailedError()
        ):
            return ConfigError(
                f"Kafka denied access: {text}",
                where=where,
                fix=f"allow Describe, DescribeConfigs, Create, Read and Write on topics {settings.prefix}rftd.*",
            )
        case kafka.MessageSizeTooLargeError() | kafka.RecordListTooLargeError():
            return CodecError(
                f"a record is over the limit of its topic: {text}",
                where=where,
                fix="raise max.message.bytes of the topics, see `rftd doctor`",
            )
        case kafka.CorruptRecordException():
            return LogCorruptError(
                f"a record does not match its checksum: {text}", where=where, fix="restore the partition from a replica"
            )
        case kafka.UnknownTopicOrPartitionError():
            return UnreachableError(f"a topic is missing: {text}", where=where, fix="run `rftd doctor`")
        case kafka.KafkaTimeoutError() | kafka.RequestTimedOutError() | kafka.NotEnoughReplicasError():
            # A leader with too few replicas may not even know the end of the partition.
            return UnreachableError(f"Kafka does not answer: {text}", where=where, fix=IN_SYNC)
        case kafka.BrokerResponseError():  # in any case, the address is right
            return UnreachableError(
                f"Kafka refused a request: {text}", where=where, fix="see the brokers' logs, and `rftd doctor --kafka`"
            )
    # By its text as well: aiokafka wraps some failed handshakes in a connection error, and names them only in the text.
    if isinstance(error.__cause__ or error, ssl.SSLError) or "SSL" in text or "CERTIFICATE" in text:
        return ConfigError(
            f"no TLS connection: {text}", where=where, field="ca_file", fix="check security= and ca_file="
        )
    return UnreachableError(
        f"Kafka does not answer: {text}",
        where=where,
        fix="check the address, that the brokers run, and security= (a TLS listener does not answer plain text)",
    )


def _where(settings: KafkaSettings) -> str:
    """Names the cluster, for an error."""
    return _WHERE.format(settings.bootstrap)


QUIET_S: Final = 30.0
"""Seconds for which a repeated warning is dropped."""
_KINDS_MAX: Final = 256
"""Number of different warnings remembered; beyond it, all are forgotten."""
_logger = logging.getLogger("rftd.kafka")
"""Logger of the Kafka backend."""


class Quiet(logging.Handler):
    """A log handler for aiokafka's warnings and errors, passing each message template on once per `QUIET_S` seconds."""

    def __init__(self) -> None:
        """Begins with no warning seen."""
        super().__init__(logging.WARNING)
        self._last_s: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Logs the record as a warning, unless its message template was logged in the last `QUIET_S` seconds."""
        now_s = time.monotonic()
        if now_s - self._last_s.get(str(record.msg), -QUIET_S) < QUIET_S:
            return
        if len(self._last_s) > _KINDS_MAX:  # templates containing values would let it grow for ever
            self._last_s.clear()
        self._last_s[str(record.msg)] = now_s
        _logger.warning("%s", record.getMessage())


def quiet() -> None:
    """Installs `Quiet` for aiokafka's loggers. Idempotent."""
    logger = logging.getLogger("aiokafka")
    if not any(isinstance(handler, Quiet) for handler in logger.handlers):
        logger.addHandler(Quiet())
        logger.propagate = False
        logger.setLevel(logging.WARNING)
