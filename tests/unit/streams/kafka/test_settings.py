"""Settings of a Kafka cluster: both spellings, the way back, and what is refused."""

from __future__ import annotations

import pytest

from rftd.ops.errors import ConfigError
from rftd.streams.kafka.settings import KafkaSettings, kafka_url, parse_kafka


def test_the_short_form_is_a_list_of_brokers() -> None:
    assert parse_kafka("host:9093, host2") == KafkaSettings(bootstrap="host:9093,host2:9092")
    assert parse_kafka("[::1]:9093") == KafkaSettings(bootstrap="[::1]:9093")


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:9092",
        "kafka://host:9092,host2/?prefix=x.&replication=3",
        "kafka://a%40b@host/?security=sasl_ssl&mechanism=scram-sha-256&ca_file=/etc/ca%20file.pem&password_env=PW",
        "kafka://host/?security=SSL&cert_file=/c&key_file=/k",
        "kafka://host/?compression=none",
    ],
)
def test_the_url_reads_back_as_equal_settings(text: str) -> None:
    settings = parse_kafka(text)
    assert parse_kafka(kafka_url(settings)) == settings


def test_every_option_is_read() -> None:
    text = (
        "kafka://u@h:1,i:2/?prefix=x.&security=SASL_SSL&mechanism=PLAIN&password_env=PW"
        "&ca_file=/a&cert_file=/c&key_file=/k&replication=3&compression=snappy"
    )
    assert parse_kafka(text) == KafkaSettings(
        bootstrap="h:1,i:2",
        prefix="x.",
        security="SASL_SSL",
        mechanism="PLAIN",
        username="u",
        password_env="PW",
        ca_file="/a",
        cert_file="/c",
        key_file="/k",
        replication=3,
        compression="snappy",
    )


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("host:9092", "zstd"),
        ("127.0.0.1:9092,host2:9092", "zstd"),
        ("127.0.0.1:9092,localhost:9093,[::1]:9094", None),
        ("kafka://127.0.0.1/?compression=zstd", "zstd"),
        ("kafka://host/?compression=none", None),
        ("kafka://host/?compression=snappy", "snappy"),
    ],
)
def test_batches_are_compressed_where_a_network_lies_between(text: str, codec: str | None) -> None:
    assert parse_kafka(text).codec == codec


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="RFTD_KAFKA_PASSWORD") as caught:
        parse_kafka("kafka://user:hunter2@host:9092/?security=SASL_SSL")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a broker address"),
        ("host:0", "not a broker address"),
        ("host:99999", "not a broker address"),
        ("user@host", "long form"),
        ("http://host", "not a scheme"),
        ("kafka://host/prefix", "unexpected '/prefix'"),
        ("kafka://host/?prefx=1", "unknown option 'prefx'"),
        ("kafka://host/?prefix=a/b", "not a valid prefix"),
        ("kafka://host/?replication=0", "replication"),
        ("kafka://host/?security=TLS", "unknown 'TLS'"),
        ("kafka://host/?security=SASL_SSL", "needs a user name"),
        ("kafka://u@host", "takes no user name"),
        ("kafka://u@host/?security=SASL_SSL&mechanism=GSSAPI", "unknown 'GSSAPI'"),
        ("kafka://host/?ca_file=/x", "files without TLS"),
        ("kafka://host/?security=SSL&cert_file=/x", "belong together"),
        ("kafka://host/?mechanism=PLAIN", "no mechanism"),
        ("kafka://host/?password_env=", "password_env is empty"),
        ("kafka://host/?compression=gzip", "unknown 'gzip'"),
    ],
)
def test_nonsense_is_refused_with_a_fix(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_kafka(text)
