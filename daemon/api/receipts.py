"""What commands and probes answer."""

from __future__ import annotations

import msgspec


class SubmitReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment is in the log."""

    id: str
    name: str
    event: str
    """Id of its experiment.submitted."""
    position: str
    """Give it as `?after=` to a read that must see it."""
    warnings: list[str]


class ForkReceipt(SubmitReceipt, frozen=True, kw_only=True):
    """The fork is in the log."""

    parent: str
    """The experiment whose history it shares."""
    at_step: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The command is in the log."""

    id: str
    """Of the experiment."""
    event: str
    position: str


class VersionView(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here."""

    version: str
    python: str
