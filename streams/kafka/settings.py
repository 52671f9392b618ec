"""`KafkaSettings`: address and login of a Kafka cluster, as text without a secret."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from rftd.ops.errors import ConfigError

SCHEME: Final = "kafka"
"""Scheme of URLs of Kafka clusters."""
SECURITY: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's protocols of a connection."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""Kafka's supported ways to log in."""
COMPRESSIONS: Final = ("zstd", "snappy", "none")
"""Compressions of batches."""
PREFIX_SIZE_MAX: Final = 200
"""Maximum length of the topics' prefix."""
_THIS_MACHINE: Final = ("localhost", "127.0.0.1", "[::1]")
"""Hosts of this machine."""
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
"""A broker's address: host, and optionally port."""
_PREFIX = re.compile(r"[A-Za-z0-9._-]*")
"""A prefix of topics, in the characters allowed by Kafka."""
_DEFAULT_PORT: Final = 9092
"""Port of a broker's address without one."""


class KafkaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Address and login of one Kafka cluster. The password is never stored here: see `password_env`."""

    bootstrap: str
    """Addresses of some brokers: `host:port,host:port`."""
    prefix: str = ""
    """Prefix of the topics' names, so that one cluster can have several logs."""
    security: str = "PLAINTEXT"
    """One of `SECURITY`."""
    mechanism: str = ""
    """One of `MECHANISMS` with SASL; empty otherwise."""
    username: str = ""
    """Name for the login; empty without a login."""
    password_env: str = "RFTD_KAFKA_PASSWORD"  # noqa: S105 - the name of a variable, not its value
    """Name of the environment variable with the password, read when connecting."""
    ca_file: str = ""
    """Path of the certificates of trusted authorities; empty for those of the system."""
    cert_file: str = ""
    """Path of the client's certificate; empty without one."""
    key_file: str = ""
    """Path of the key of the client's certificate."""
    replication: int = 1
    """Copies of each partition, for topics created by rftd."""
    compression: str = ""
    """One of `COMPRESSIONS`, or empty: see `codec`."""

    @property
    def codec(self) -> str | None:
        """Compression of batches, None for none: as set, else zstd, but none for brokers that are all on this machine,
        where no network is relieved.

        Token ids and log-probabilities shrink by a quarter, at the cost of as much time as all other work on a record.
        """
        if not self.compression:
            is_local = all(address.rpartition(":")[0] in _THIS_MACHINE for address in self.bootstrap.split(","))
            return None if is_local else "zstd"
        return None if self.compression == "none" else self.compression

    @property
    def sasl(self) -> bool:
        """True if brokers require a user name and a password."""
        return self.security.startswith("SASL_")

    @property
    def tls(self) -> bool:
        """True if the connection to brokers is encrypted."""
        return self.security.endswith("SSL")


_TYPES: Final = {field.name: field.type for field in msgspec.structs.fields(KafkaSettings)}
"""Types of the settings, by name."""
_OPTIONS: Final = tuple(name for name in _TYPES if name not in ("bootstrap", "username"))
"""Settings that a URL states behind its `?`."""


def parse_kafka(text: str) -> KafkaSettings:
    """Parses broker addresses (`host:9092,host2:9092`) or a URL
    (`kafka://user@host:9092/?prefix=x.&security=SASL_SSL&...`).

    Raises ConfigError with the fix, also for a password in the text; the message never repeats the password.
    """
    text = text.strip()
    if "://" not in text:
        if "@" in text:
            raise _error("a user name needs the long form", fix=f"{SCHEME}://USER@HOST:9092/?security=SASL_SSL")
        return _checked({"bootstrap": text})
    parts = urlsplit(text)
    if parts.scheme != SCHEME:
        raise _error(f"{parts.scheme!r} is not a scheme of a Kafka cluster", fix=f"{SCHEME}://HOST:9092/?prefix=rl.")
    user, at, hosts = parts.netloc.rpartition("@")
    if ":" in user:
        raise _error(
            "a password in a URL ends up in logs and process lists",
            fix="put it into the environment variable RFTD_KAFKA_PASSWORD, or name another: ?password_env=NAME",
        )
    if parts.path not in ("", "/") or parts.fragment:
        raise _error(f"unexpected {parts.path or parts.fragment!r} after the addresses", fix="use ?prefix=NAME.")
    options = {"bootstrap": hosts, **({"username": unquote(user)} if at else {})}
    for name, option_text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise _error(f"unknown option {name!r}", fix=f"known options: {', '.join(_OPTIONS)}")
        options[name] = option_text
    return _checked(options)


def kafka_url(settings: KafkaSettings) -> str:
    """Formats settings as a URL, parsed by `parse_kafka` into equal settings; without a secret."""
    options = {
        name: getattr(settings, name)
        for name in _OPTIONS
        if getattr(settings, name) != getattr(KafkaSettings(bootstrap=settings.bootstrap), name)
    }
    user = f"{quote(settings.username, safe='')}@" if settings.username else ""
    query = f"?{urlencode(options)}" if options else ""
    return f"{SCHEME}://{user}{settings.bootstrap}/{query}"


def _checked(options: dict[str, str]) -> KafkaSettings:
    """Returns settings from texts; raises ConfigError for an unknown or contradictory value."""
    options["bootstrap"] = _addresses(options["bootstrap"])
    replication = options.pop("replication", "1")
    if not re.fullmatch(r"[1-9][0-9]?", replication):
        raise _error(f"replication {replication!r} is not a number from 1 to 99", field="replication")
    options["security"] = options.get("security", "PLAINTEXT").upper()
    options["mechanism"] = options.get("mechanism", "").upper()
    settings = msgspec.structs.replace(KafkaSettings(**options), replication=int(replication))  # type: ignore[arg-type]
    if settings.security not in SECURITY:
        raise _error(f"unknown {settings.security!r}", field="security", fix=f"one of {', '.join(SECURITY)}")
    if settings.sasl and not settings.mechanism:
        settings = msgspec.structs.replace(settings, mechanism="SCRAM-SHA-512")
    if settings.sasl and settings.mechanism not in MECHANISMS:
        raise _error(f"unknown {settings.mechanism!r}", field="mechanism", fix=f"one of {', '.join(MECHANISMS)}")
    if settings.sasl != bool(settings.username):
        raise _error(
            f"security {settings.security} {'needs a' if settings.sasl else 'takes no'} user name",
            field="security",
            fix=f"{SCHEME}://USER@{settings.bootstrap}/?security=SASL_SSL" if settings.sasl else "?security=SASL_SSL",
        )
    if not settings.sasl and settings.mechanism:
        raise _error(f"security {settings.security} has no mechanism", field="mechanism", fix="?security=SASL_SSL")
    if not settings.tls and (settings.ca_file or settings.cert_file or settings.key_file):
        raise _error("TLS files without TLS", field="security", fix="?security=SSL, or SASL_SSL with a user name")
    if bool(settings.cert_file) != bool(settings.key_file):
        raise _error("cert_file and key_file belong together", field="cert_file", fix="set both or neither")
    if not _PREFIX.fullmatch(settings.prefix) or len(settings.prefix) > PREFIX_SIZE_MAX:
        raise _error(
            f"{settings.prefix!r} is not a valid prefix of topic names",
            field="prefix",
            fix="letters, digits, dots, dashes and underscores, e.g. team.",
        )
    if settings.compression and settings.compression not in COMPRESSIONS:
        raise _error(f"unknown {settings.compression!r}", field="compression", fix=f"one of {', '.join(COMPRESSIONS)}")
    if not settings.password_env:
        raise _error("password_env is empty", field="password_env", fix="name an environment variable")
    return settings


def _addresses(text: str) -> str:
    """Returns the brokers' addresses with their ports; raises ConfigError for another text."""
    addresses = []
    for address in text.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        port = int(match[2] or _DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise _error(f"{address.strip()!r} is not a broker address", field="bootstrap", fix="HOST:9092,HOST2:9092")
        addresses.append(f"{match[1]}:{port}")
    return ",".join(addresses)


def _error(fault: str, *, field: str | None = None, fix: str | None = None) -> ConfigError:
    """Returns an error about the cluster's address."""
    return ConfigError(fault, where="the address of the Kafka cluster", field=field, fix=fix)
