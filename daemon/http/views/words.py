"""Words found in the answers of an experiment, or of one of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import After, Daemon, Int, Name, read
from rftd.ops.errors import NotFoundError
from rftd.storage.queries.experiences import ExperienceRow
from rftd.storage.queries.rollout_rows import experiences_with, rollouts_of_step

if TYPE_CHECKING:
    from rftd.daemon.text.transcript import TextTools

_CHARS_BEFORE_MATCH: Final = 80
"""Number of characters of a passage before the first matching word."""
_SNIPPET_CHARS: Final = 240
"""Maximum number of characters of a passage."""
Words = Annotated[
    str,
    Meta(min_length=1, max_length=500, description='Words, all of which occur; "words in quotes" follow each other.'),
]
"""Words to be found in an answer, all together; quoted words follow each other."""
Answers = Annotated[int, Meta(ge=1, le=50)]
"""Number of answers on a page, from 1 to 50."""


class AnswerWithWords(msgspec.Struct, frozen=True, kw_only=True):
    """An experience with the words in the answer, and a passage around the first word."""

    experience: ExperienceRow
    """The experience without tokens."""
    passage: str
    """Passage of the answer around the first matching word."""


class WordsFound(msgspec.Struct, frozen=True, kw_only=True):
    """Answers with the words, newest first; the index is filled by the requests."""

    items: list[AnswerWithWords]
    """Matching answers of the page, newest first."""
    total: int
    """Number of answers with the words in the index, or in the step."""
    indexed: int
    """Number of answers in the index, or in the step."""
    share: float
    """Indexed share of the experiment: below 1, repeated requests find more."""
    next: int | None
    """`before` of the next page; null at the end."""
    notes: list[str]
    """Reasons for missing answers."""


@read("/v1/experiments/{name}/words", WordsFound, tag="experiences")
async def words(
    daemon: Daemon, name: Name, q: Words, step: Int = None, before: Int = None, limit: Answers = 20, after: After = None
) -> WordsFound:
    """Answers of an experiment with the words, or with `step` of one step; each request indexes for up to a second."""
    from rftd.daemon.text.transcript import NO_SPEC, TextTools
    from rftd.daemon.text.word_files import searched_phrases
    from rftd.daemon.text.word_index import is_gone

    phrases = searched_phrases(q)
    id = await daemon.find(name, after)
    origin = await daemon.operations.text_origin(id)
    tools = TextTools(daemon.log, daemon.texts, origin)
    if step is not None:
        return await _of_step(daemon, tools, id, q, phrases, step, limit)
    indices = await daemon.words.present()
    await daemon.words.forget([index for index in indices if is_gone(await daemon.operations.text_origin(index))])
    if origin is None or is_gone(origin):
        raise NotFoundError(NO_SPEC if origin is None else "the experiment's texts were removed or dropped")
    matches, progress = await daemon.words.search(tools, id, phrases, before=before, limit=limit + 1)
    shown = matches.places[:limit]
    async with daemon.read() as connection:
        rows = {row.id: row for row in await experiences_with(connection, id, [experience for _, experience in shown])}
    # Records of strangers are in the log, and in no table.
    counted = [rows[str(experience)] for _, experience in shown if str(experience) in rows]
    return WordsFound(
        items=await _passages(tools, counted, q),
        total=matches.total,
        indexed=progress.experiences,
        share=progress.share,
        next=shown[-1][0] if len(matches.places) > limit else None,
        notes=[],
    )


async def _of_step(
    daemon: Daemon, tools: TextTools, id: UUID, q: str, phrases: Sequence[str], step: int, limit: int
) -> WordsFound:
    """Returns the answers trained in a step, decoded for the request."""
    import asyncio

    from rftd.daemon.text.word_files import matching

    async with daemon.read() as connection:
        rows = await rollouts_of_step(connection, id, step)
    answers, notes = await _texts(tools, rows)
    indices = await asyncio.to_thread(matching, phrases, answers)
    return WordsFound(
        items=[AnswerWithWords(experience=rows[n], passage=_passage(answers[n], q)) for n in indices[:limit]],
        total=len(indices),
        indexed=len(rows),
        share=1.0,
        next=None,
        notes=notes,
    )


async def _passages(tools: TextTools, rows: Sequence[ExperienceRow], q: str) -> list[AnswerWithWords]:
    """Returns experiences with a passage of each answer around the first of the words searched for."""
    answers, _ = await _texts(tools, rows)
    pairs = zip(rows, answers, strict=True)
    return [AnswerWithWords(experience=row, passage=_passage(answer, q)) for row, answer in pairs]


async def _texts(tools: TextTools, rows: Sequence[ExperienceRow]) -> tuple[list[str], list[str]]:
    """Returns the answer of each experience, empty without a text, and the reasons for missing ones."""
    from rftd.daemon.text.texts import WantedText
    from rftd.daemon.text.transcript import rollout_of

    rollouts = [await rollout_of(tools, row) for row in rows]
    texts: dict[str, str] = {}
    for stage in sorted({row.stage for row in rows}):
        requests = {
            rollout.row.id: WantedText(b"".join(turn.answer.tobytes() for turn in rollout.turns), special=False)
            for rollout in rollouts
            if rollout.row.stage == stage and rollout.turns
        }
        decoded, _ = await tools.texts.decode(tools.tokenizer(stage), list(requests.values())) if requests else ({}, "")
        texts |= {id: decoded[text].text for id, text in requests.items()}
    notes = sorted({note for rollout in rollouts for note in rollout.notes})
    return [texts.get(row.id, "") for row in rows], notes[:5]


def _passage(answer: str, q: str) -> str:
    """Returns the text around the first of the words, or the beginning."""
    lower = answer.casefold()
    places = [lower.find(word.strip('"').casefold()) for word in q.split()]
    first = min((place for place in places if place >= 0), default=0)
    start = max(0, first - _CHARS_BEFORE_MATCH)
    return answer[start : start + _SNIPPET_CHARS]
