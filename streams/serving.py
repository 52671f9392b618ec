"""The part of a specification that says where explorers serve."""

from __future__ import annotations

import msgspec

from rftd.streams.bounds import Index


class ServingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP server of explorers: its IP address, and its port (0: any that is free)."""

    address: str
    port: Index
