"""`Consequence`: the answer to a command's dry run, in a sentence and in figures."""

from __future__ import annotations

import msgspec


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """The expected effect of a command, as of now; nothing was recorded."""

    name: str
    """Name of the experiment or sweep, or id of the dead letter."""
    sentence: str
    """The effect in words."""
    figures: dict[str, float] = {}
    """Counts, seconds and bytes of the sentence by name: rollouts, experiences, steps, `queue_position`,
    `freed_bytes`, `memory_bytes`.
    """
    warnings: list[str] = []
    """Warnings of a new experiment's checks."""


class Rehearsed(Exception):
    """Signal ending a rehearsed command in place of its first append, with the consequence."""

    def __init__(self, consequence: Consequence) -> None:
        """`consequence` is the answer to the rehearsed command."""
        super().__init__(consequence.sentence)
        self.consequence = consequence
        """Expected effect of the rehearsed command."""
