"""Checks of every address named by a file, a worker or a record, by the text alone: no name is resolved here.

A submission by anybody but the owner may reach only public addresses and addresses allowed by the configuration. Names
are checked again when a connection is made, by `outbound_transport`: names may resolve to any address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rftd.ops.errors import ConfigError

_PORTS: Final = {"http": 80, "https": 443}
"""Default ports by scheme."""
_UNWRITABLE: Final = re.compile(r"[^\x21-\x7e]|\\")
"""Characters outside of valid addresses, which URL parsers drop, replace or interpret differently."""
_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?")
"""A name of a host."""
_NAME_CHARS: Final = 254
"""Maximum length of a host's name."""
_NUMBER: Final = re.compile(r"0[xX][0-9A-Fa-f]*|[0-9]+")
"""A part of an address written as a number."""
_PRIVATE_ENDS: Final = (
    *("localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan", "svc", "arpa"),
)
"""Suffixes of names without a public address."""
_CARRIERS: Final = (0, 0xFFFF << 16, 0x64FF9B << 64)
"""The first 96 bits of IPv6 addresses that embed an IPv4 address in their last 32: `::`, `::ffff:0:`, `64:ff9b::`."""


class PrivateAddressError(ConfigError):
    """An address reserved to the owner, unless the configuration allows it."""


class WebAddress(NamedTuple):
    """The parts of an http address, in normal form for comparisons."""

    scheme: str
    """`http` or `https`."""
    host: str
    """In lower case, without brackets and without a trailing dot."""
    port: int
    """Port, the scheme's default included."""


def check_url(text: str, *, field: str, public_only: bool, allowed: Sequence[str] = ()) -> None:
    """Raises unless `text` is an http address; with `public_only`, unless the host may be public, or is `allowed`.

    `allowed` are hosts, as HOST or HOST:PORT. Nothing is resolved. Raises ConfigError for a malformed http address and
    PrivateAddressError for a refused one; neither repeats a possible secret.
    """
    address = web_address(text, field=field)
    if public_only and not names_host(allowed, address) and not may_be_public(address.host):
        raise PrivateAddressError(
            f"{address.host!r} is no public address",
            field=field,
            fix=f"name a public one, or have the daemon's owner allow it: --allow-url {_host_text(address.host)}",
        )


def web_address(text: str, *, field: str) -> WebAddress:
    """Returns the parts of an http address. Raises ConfigError, without the text, for anything else."""
    if _UNWRITABLE.search(text):
        raise _error(
            "has a character that no address has", field, "write it in ASCII: a name as xn--..., a path as %XX"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _error("is no http address", field, "write http://HOST:PORT/PATH or https://...") from None
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise _error("is no http address", field, "begin it with http:// or https://, and a host")
    if "@" in parts.netloc:
        raise _error("has a user or a password, which everybody reads", field, "name a variable for the key")
    if "?" in text or "#" in text:
        raise _error("has parameters", field, "leave out what follows ? or #; a key belongs into a variable")
    return WebAddress(parts.scheme, host_of(parts.hostname, field=field), port or _PORTS[parts.scheme])


def host_and_port(text: str, *, field: str) -> tuple[str, int]:
    """Returns host and port of `HOST:PORT`, as records name other workers. Raises ConfigError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise _error("is no HOST:PORT", field, "write a host and a port from 1 to 65535")
    if host.startswith("[") != host.endswith("]"):
        raise _error("is no HOST:PORT", field, "write an IPv6 address in brackets")
    return host_of(host.strip("[]"), field=field), int(port)


def host_of(text: str, *, field: str) -> str:
    """Returns the host name or IP address in normal form. Raises ConfigError for unusual spellings of numbers, and for
    no host.
    """
    if ":" in text:
        try:
            address = IPv6Address(text)
        except ValueError:
            raise _error("is no IPv6 address", field, "write it as in [2001:db8::1]") from None
        if address.scope_id is not None:
            raise _error("names a device of this machine", field, "leave out what follows %")
        return str(address)
    if not _NAME.fullmatch(text) or len(text) > _NAME_CHARS:
        raise _error("has no host name", field, "take letters, digits, dots and dashes")
    host = text.lower().removesuffix(".")
    # As in browsers and C libraries: a host ending in a number is an IPv4 address, in any base.
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise _error("is another spelling of an IPv4 address", field, "write it as in 192.0.2.1") from None
    return host


def may_be_public(host: str) -> bool:
    """False for an IP address outside of the public internet, and for a name with a private suffix or without a dot."""
    try:
        address = ip_address(host)
    except ValueError:
        return "." in host and not any(host == end or host.endswith("." + end) for end in _PRIVATE_ENDS)
    return is_public(address)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """True for an address of a single host on the public internet: not local, of a local network, or of several
    machines.
    """
    if isinstance(address, IPv6Address) and (carried := _carried(address)) is not None:
        # A gateway translates to the embedded address on the way.
        return is_public(carried)
    return address.is_global and not (
        address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_reserved
        or address.is_unspecified
        or (isinstance(address, IPv6Address) and address.is_site_local)
    )


def names_host(hosts: Iterable[str], address: WebAddress) -> bool:
    """True if `hosts`, each HOST or HOST:PORT, contain the address."""
    spellings = {address.host, f"{_host_text(address.host)}:{address.port}", _host_text(address.host)}
    return any(host.strip().lower().removesuffix(".") in spellings for host in hosts)


def _carried(address: IPv6Address) -> IPv4Address | None:
    """Returns the IPv4 address embedded in an IPv6 address: mapped, compatible, translated (NAT64), 6to4 or Teredo."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    number = int(address)
    if number >> 32 in _CARRIERS and number > 1:  # 0 and 1 are IPv6's own addresses
        return IPv4Address(number & 0xFFFFFFFF)
    return None


def _host_text(host: str) -> str:
    """Returns a host as written in URLs: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def _error(what: str, field: str, fix: str) -> ConfigError:
    """Builds the error of an unfit address."""
    return ConfigError(what, field=field, fix=fix)
