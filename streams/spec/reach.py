"""Addresses in a specification: those that an experiment may use, with its keys, and that at which explorers serve."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.ops.outbound import WebAddress, check_url, names_host
from rftd.streams.log.bounds import Index

# Defaults say what logs mean that were written before the field was there, as in `rftd.streams.spec.spec`.


class ReachSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The reach of an experiment, as the verdict on its submission has it. Workers hold to it, whatever they read."""

    restricted: bool = False
    """True of anybody's but the owner's: public addresses and granted variables alone."""
    addresses: tuple[str, ...] = ()
    """Hosts, as HOST or HOST:PORT, that may be this machine's or its networks'."""
    secrets: dict[str, tuple[str, ...]] = {}
    """Names of variables that may be read for it, each with the hosts to which its value may be sent."""

    def joined(self, other: ReachSpec) -> ReachSpec:
        """The reach of an experiment of two halves, which one asker submitted or its owner completed."""
        return ReachSpec(
            restricted=self.restricted or other.restricted,
            addresses=tuple(dict.fromkeys((*self.addresses, *other.addresses))),
            secrets={**self.secrets, **other.secrets},
        )

    def check(self, url: str, *, field: str, variable: str = "") -> None:
        """Returns if it may ask this URL, which stands in a variable unless that is empty. Raises ConfigError."""
        check_url(url, field=field, public_only=self.restricted, allowed=self.hosts(variable))

    def hosts(self, variable: str = "") -> tuple[str, ...]:
        """The hosts that may have any address for it, those of the variable with the URL among them."""
        return (*self.addresses, *self.secrets.get(variable, ()))

    def may_read(self, variable: str) -> bool:
        """True if the variable's value may be read for it."""
        return not self.restricted or variable in self.secrets

    def may_send(self, variable: str, address: WebAddress) -> bool:
        """True if the variable's value may be sent there: to a granted host, and in the clear to an allowed one alone.

        An owner's may be sent anywhere.
        """
        if not self.restricted:
            return True
        granted = names_host(self.secrets.get(variable, ()), address)
        return granted and (address.scheme == "https" or names_host(self.addresses, address))


OWNERS: Final = ReachSpec()
"""The reach of what the owner submits."""


class ServingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP server of explorers: its IP address, and its port (0: any that is free)."""

    address: str
    port: Index


SERVE_KEY: Final = "RFTD_SERVE_KEY"
"""The environment variable of explorers that holds the key which clients must bring."""
