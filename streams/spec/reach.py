"""Addresses in a specification: the ones allowed to an experiment, with its keys, and its explorers' server."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.ops.outbound import WebAddress, check_url, names_host
from rftd.streams.log.bounds import Index

# Defaults give the meaning of logs written before the field existed, as in `rftd.streams.spec.spec`.


class ReachSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The reach of an experiment, from the verdict on its submission. Workers enforce it, whatever they read."""

    restricted: bool = False
    """True for any submitter but the owner: only public addresses and granted variables."""
    addresses: tuple[str, ...] = ()
    """Hosts, as HOST or HOST:PORT, allowed even on this machine or its networks."""
    secrets: dict[str, tuple[str, ...]] = {}
    """Variables readable for the experiment, each with the hosts allowed to receive its value."""

    def joined(self, other_half: ReachSpec) -> ReachSpec:
        """Returns the reach of an experiment of two halves, submitted by one person or completed by its owner."""
        return ReachSpec(
            restricted=self.restricted or other_half.restricted,
            addresses=tuple(dict.fromkeys((*self.addresses, *other_half.addresses))),
            secrets={**self.secrets, **other_half.secrets},
        )

    def check(self, url: str, *, field: str, variable: str = "") -> None:
        """Returns if the experiment may request this URL, named by a variable unless empty. Raises ConfigError."""
        check_url(url, field=field, public_only=self.restricted, allowed=self.hosts(variable))

    def hosts(self, variable: str = "") -> tuple[str, ...]:
        """Returns the hosts allowed with any address, including the ones of the variable with the URL."""
        return (*self.addresses, *self.secrets.get(variable, ()))

    def may_read(self, variable: str) -> bool:
        """True if the variable's value may be read for the experiment."""
        return not self.restricted or variable in self.secrets

    def may_send(self, variable: str, address: WebAddress) -> bool:
        """True if the variable's value may be sent to a host: a granted one, and in the clear only an allowed one.

        An owner's value may be sent anywhere.
        """
        if not self.restricted:
            return True
        granted = names_host(self.secrets.get(variable, ()), address)
        return granted and (address.scheme == "https" or names_host(self.addresses, address))


OWNERS: Final = ReachSpec()
"""The reach of the owner's submissions."""


class ServingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP server of explorers: its IP address, and its port (0: any free one)."""

    address: str
    port: Index


SERVE_KEY: Final = "RFTD_SERVE_KEY"
"""The environment variable of explorers with the key required of clients."""
