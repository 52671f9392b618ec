"""Settings as aiokafka's arguments; its errors as ours; and a real login."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from aiokafka import errors as kafka

from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.errors import CodecError, ConfigError, LogCorruptError, RftdError, UnreachableError
from rftd.ops.ids import SystemIds
from rftd.streams.kafka.connect import arguments, check_cluster, translate
from rftd.streams.kafka.log import KafkaLog
from rftd.streams.kafka.settings import KafkaSettings, parse_kafka

PLAIN = KafkaSettings(bootstrap="h:1,i:2")


def test_plain_text_needs_no_credentials() -> None:
    found = arguments(PLAIN)
    assert found["bootstrap_servers"] == ["h:1", "i:2"]
    assert found["security_protocol"] == "PLAINTEXT"
    assert "ssl_context" not in found
    assert "sasl_mechanism" not in found


def test_the_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse_kafka("kafka://user@h:1/?security=SASL_SSL&mechanism=SCRAM-SHA-256&password_env=PW")
    with pytest.raises(ConfigError, match="set the environment variable PW"):
        arguments(settings)
    monkeypatch.setenv("PW", "secret")
    found = arguments(settings)
    assert (found["sasl_mechanism"], found["sasl_plain_username"]) == ("SCRAM-SHA-256", "user")
    assert found["sasl_plain_password"] == "secret"
    assert isinstance(found["ssl_context"], ssl.SSLContext)
    assert found["ssl_context"].check_hostname


def test_an_unusable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=name):
            arguments(parse_kafka(f"kafka://h/?security=SSL&ca_file={tmp_path / name}"))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (kafka.KafkaConnectionError("refused"), UnreachableError, "check the address"),
        (kafka.AuthenticationFailedError("no"), ConfigError, "RFTD_KAFKA_PASSWORD"),
        (kafka.UnsupportedSaslMechanismError("no"), ConfigError, "mechanism"),
        (kafka.TopicAuthorizationFailedError("t"), ConfigError, "Describe"),
        (kafka.MessageSizeTooLargeError("t"), CodecError, "max.message.bytes"),
        (kafka.CorruptRecordException("t"), LogCorruptError, "checksum"),
        (kafka.UnknownTopicOrPartitionError("t"), UnreachableError, "doctor"),
        (ssl.SSLCertVerificationError("CERTIFICATE_VERIFY_FAILED"), ConfigError, "ca_file"),
        (kafka.KafkaTimeoutError("offsets"), UnreachableError, "enough replicas are in sync"),
        (kafka.NotEnoughReplicasError(), UnreachableError, "enough replicas are in sync"),
        (kafka.PolicyViolationError("t"), UnreachableError, "Kafka refused a request: [Error 44]"),
        (TimeoutError(), UnreachableError, "TimeoutError"),
    ],
)
def test_errors_say_what_to_do(error: Exception, kind: type[RftdError], text: str) -> None:
    found = translate(error, PLAIN)
    assert type(found) is kind
    assert text in str(found)
    assert translate(found, PLAIN) is found


@pytest.mark.anyio
async def test_a_wrong_address_is_named() -> None:
    with pytest.raises(UnreachableError, match=r"Kafka at 127\.0\.0\.1:1"):
        await check_cluster(KafkaSettings(bootstrap="127.0.0.1:1"))


@pytest.mark.anyio
async def test_a_login(own_servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = KafkaBroker(own_servers / "kafka", users={"alice": "open sesame"})
    broker.start()
    settings = parse_kafka(f"kafka://alice@{broker.sasl_bootstrap}/?security=SASL_PLAINTEXT")
    clock = SystemClock()
    monkeypatch.setenv("RFTD_KAFKA_PASSWORD", "wrong")
    with pytest.raises(ConfigError, match="refused the user 'alice'"):
        await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))
    plain = parse_kafka(f"kafka://alice@{broker.sasl_bootstrap}/?security=SASL_PLAINTEXT&mechanism=PLAIN")
    with pytest.raises(ConfigError, match="does not support PLAIN"):
        await KafkaLog.open(plain, clock=clock, ids=SystemIds(clock))
    monkeypatch.setenv("RFTD_KAFKA_PASSWORD", "open sesame")
    log = await KafkaLog.open(settings, clock=clock, ids=SystemIds(clock))
    assert await log.heads() == {}
    await log.close()
