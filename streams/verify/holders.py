"""`Holders`: the processes that fences made owners of roles, and records that none of them can have written."""

from __future__ import annotations

from rftd.streams.events.experiment import Fence
from rftd.streams.events.registry import definition_of
from rftd.streams.log.envelope import Decoded, Head
from rftd.streams.log.fencing import Role
from rftd.streams.log.topics import Partition
from rftd.streams.log.writers import holder_source


class Holders:
    """The sources allowed to write under each epoch of a role, by partition."""

    def __init__(self) -> None:
        """Begins without an owner."""
        self._sources: dict[tuple[Partition, Role, int], set[str]] = {}

    def objection(self, decoded: Decoded, epoch: int) -> str:
        """Returns why no process obeying the rules can have written the record; empty if one can, even after losing the
        role.

        `epoch` is the role's epoch at the record's position.
        """
        head = decoded.head
        event = decoded.event
        if isinstance(event, Fence):
            return self._of_fence(head, event, decoded.partition)
        definition = definition_of(type(event))
        if not head.role and not definition.owner:
            return ""
        if head.role != definition.owner and not (definition.commanded and not head.role):
            return f"was written by {head.role or 'no role'}, and only the {definition.owner or 'roleless'} may"
        if not head.role:
            return ""
        named = f"epoch {head.epoch} of the {head.role}"
        if head.epoch > epoch:
            return f"is of {named}, which no fence began"
        if head.epoch < 1:
            return f"is of {named}"
        # The fence of an earlier epoch may be among the records lost by a log; its zombie writes on.
        sources = self._sources.get((decoded.partition, Role(head.experiment, head.role), head.epoch))
        return "" if sources is None or head.source in sources else f"is of {named}, which {head.source!r} never held"

    def _of_fence(self, head: Head, event: Fence, partition: Partition) -> str:
        """Returns the fault of a fence that contradicts its own envelope; an empty text if there is none."""
        if (event.role, event.epoch) != (head.role, head.epoch):
            return f"is of epoch {head.epoch} of {head.role or 'no role'}"
        source = holder_source(event.role, event.owner)
        if head.source != source:
            return f"makes {source!r} the {event.role}, and {head.source!r} wrote it"
        # A fence made void by a rival's counts here: records appended by its writer before it knew are no forgery.
        self._sources.setdefault((partition, Role(head.experiment, event.role), event.epoch), set()).add(source)
        return ""
