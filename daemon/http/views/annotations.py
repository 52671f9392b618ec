"""Notes, stars and labels on experiments and rollouts: the command, and the read."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.commands import Receipt, receipt_of
from rftd.daemon.http.views.route import After, Daemon, Limit, Name, command, read
from rftd.ops.errors import UsageError
from rftd.storage.queries.annotations import NoteRow, RolloutMark, list_marks, list_notes

NOTE_CHARACTERS: Final = 10_000
"""Maximum number of characters in a note."""
_LABELS: Final = 64
"""Maximum number of labels in a command."""
_LABEL_CHARACTERS: Final = 500
"""Maximum number of characters in the key or the text of a label."""
_TAG: Final = "annotations"
"""Chapter of the OpenAPI document with these routes."""
Label = Annotated[str, Meta(max_length=_LABEL_CHARACTERS, pattern=r"^[^\x00]*$")]
"""Key or text of a label, bounded and without NUL."""


class Annotate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/experiments/{name}/annotate: a note, a star or labels, of the run or of one rollout."""

    experience: UUID | None = None
    """The rollout; null for the experiment."""
    note: Annotated[str, Meta(max_length=NOTE_CHARACTERS, pattern=r"^[^\x00]*$")] = ""
    """A further note."""
    star: bool | None = None
    """Sets or removes the star; null leaves it."""
    labels: dict[Label, Label] | None = None
    """The whole set of labels; null leaves them."""


class AnnotationList(msgspec.Struct, frozen=True, kw_only=True):
    """The notes on an experiment and its rollouts, and the rollouts with a star or labels."""

    starred: bool
    """True if the experiment itself has a star."""
    labels: dict[str, str]
    """Labels of the experiment."""
    notes: list[NoteRow]
    """The notes, newest first."""
    rollouts: list[RolloutMark]
    """Annotated rollouts."""


@command("/v1/experiments/{name}/annotate", Annotate, Receipt, tag=_TAG)
async def annotate(daemon: Daemon, body: Annotate, key: UUID, name: Name) -> Receipt:
    """Add a note, a star or labels to an experiment in any state, or to one of its rollouts."""
    from rftd.daemon.run.operations import Annotation
    from rftd.storage.queries.experiences import find_experience

    if not body.note.strip() and body.star is None and body.labels is None:
        raise UsageError("nothing to add", field="note", fix="send a note, star or labels")
    if body.labels is not None and len(body.labels) > _LABELS:
        raise UsageError(f"{len(body.labels)} labels", field="labels", fix=f"at most {_LABELS}")
    id = await daemon.find(name)
    if body.experience is not None:
        async with daemon.read() as connection:
            await find_experience(connection, id, str(body.experience))
    annotation = Annotation(body.experience, body.note.strip(), body.star, body.labels)
    return receipt_of(id, await daemon.operations.annotate(id, annotation, request_id=key))


@read("/v1/experiments/{name}/annotations", AnnotationList, tag=_TAG, name="annotations")
async def annotated(daemon: Daemon, name: Name, limit: Limit = 200, after: After = None) -> AnnotationList:
    """The notes on an experiment and its rollouts, its star and labels, and the rollouts with a star or labels."""
    from rftd.storage.queries.experiments import get_summary

    async with daemon.read(after) as connection:
        id = await daemon.resolve(connection, name)
        summary = await get_summary(connection, id)
        return AnnotationList(
            starred=summary.starred,
            labels=summary.labels,
            notes=await list_notes(connection, id, limit=limit),
            rollouts=await list_marks(connection, id, limit=limit),
        )
