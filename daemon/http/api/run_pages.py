"""Routes of a run's further pages for people: its rollouts, its drops, and its evaluations."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response

from rftd.daemon.http.api.pages import After, Cursor, RunName, Search, json_url, shown_page
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.page.marked_text import differing, has_alone, holds_truth, parts_of
from rftd.daemon.http.page.rendering import render
from rftd.daemon.http.page.rollouts import (
    CellGroup,
    Colour,
    VersionLine,
    failed_words,
    groups_of,
    neighbours_of,
    versions_of,
)
from rftd.daemon.http.views import annotations as annotation_views
from rftd.daemon.http.views import drops as drop_views
from rftd.daemon.http.views import evaluations, experiences, experiments, groups, history, text, words
from rftd.daemon.http.views import tokens as token_views
from rftd.daemon.http.views.evaluations import Which
from rftd.daemon.http.views.experiences import Order, State
from rftd.daemon.http.views.groups import MOST_PROMPTS
from rftd.daemon.http.views.route import MOST, NAME_CHARACTERS
from rftd.ops.errors import RftdError
from rftd.storage.queries.experiences import ExperienceRow

STEP_ROLLOUTS: Final = 1000
"""Maximum number of rollouts listed for one step."""
ROLLOUTS: Final = 256
"""Maximum number of rollouts in a list without a step."""
MOST_MEMBERS: Final = 256
"""Maximum number of rollouts shown of one group."""
COMPARED_TOKENS: Final = 200_000
"""Maximum number of tokens in a group whose words are compared."""
COMPARED_CHARS: Final = 50_000
"""Maximum number of characters shown of an answer whose words are compared with its group's."""
_COMPARED: Final = 64
"""Maximum number of rollouts in a group whose words are compared."""
_VERSIONS: Final = 1000
"""Maximum number of experiences of one row whose weight versions are listed."""
ANSWERS: Final = 25
"""Number of held-out answers on one page."""

Id = Annotated[str | None, Query(max_length=100, pattern=r"^[0-9a-fA-F-]*$")]
"""Query parameter: an id, or its first hexadecimal digits."""
Number = Annotated[int | None, Query(ge=0, le=MOST)]
"""Query parameter: a number from 0."""
Bound = Annotated[float | None, Query(allow_inf_nan=False)]
"""Query parameter: a finite bound of a figure."""
Word = Annotated[str | None, Query(max_length=NAME_CHARACTERS, pattern=r"^[^\x00]*$")]
"""Query parameter: a name without NUL."""
# A browser cannot lay out a longer word within the page: its widths end at 33 million pixels.
Chars = Annotated[int, Query(ge=1, le=2_000_000)]
"""Query parameter: the number of characters shown of an answer."""
_USUAL: Final[dict[str, Any]] = {"q": "", "order": "newest", "colour": "reward", "chars": COMPARED_CHARS}
"""Default query parameters, left out of links."""


def router(services: Services) -> APIRouter:
    """Returns the routes of a run's pages; the API's document has none of them: they are for people."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/runs/{name}/rollouts")
    async def rollouts(
        request: Request,
        name: RunName,
        q: Search = "",
        step: Number = None,
        group: Id = None,
        id: Id = None,
        order: Order = "newest",
        state: State | None = None,
        finish: Word = None,
        min_reward: Bound = None,
        max_reward: Bound = None,
        colour: Colour = "reward",
        chars: Chars = COMPARED_CHARS,
        cursor: Cursor = None,
        after: After = None,
    ) -> Response:
        """Rollouts by step, group and answer, with text, truth, and the same row at other versions."""
        where = {
            "step": step,
            "order": order,
            "state": state,
            "finish": finish,
            "min_reward": min_reward,
            "max_reward": max_reward,
        }
        shown = {"q": q, **where, "colour": colour, "chars": chars, "cursor": cursor}
        wanted = id or None
        return await shown_page(
            request, services, lambda bearer: _rollouts(bearer, name, shown, group or None, wanted, after)
        )

    @routes.get("/runs/{name}/drops")
    async def drops(request: Request, name: RunName, stage: Number = None) -> Response:
        """Dropped rollouts by reason, compared with trained rollouts, and the books of all experiences."""
        return await shown_page(request, services, lambda bearer: _drops(bearer, name, stage))

    @routes.get("/runs/{name}/evaluations")
    async def evaluated(
        request: Request,
        name: RunName,
        taskset: Word = None,
        version: Number = None,
        against: Number = None,
        order: Which = "worst",
        offset: Annotated[int, Query(ge=0, le=MOST)] = 0,
    ) -> Response:
        """The answers of a version to held-out rows, beside those of an earlier one."""
        shown = {"taskset": taskset, "version": version, "against": against, "order": order, "offset": offset}
        return await shown_page(request, services, lambda bearer: _evaluations(bearer, name, shown))

    @routes.get("/runs/{name}/held-out/{row}")
    async def held_out(
        request: Request, name: RunName, row: Annotated[int, Path(ge=0, le=MOST)], taskset: Word = None
    ) -> Response:
        """One held-out row with the answers of each version."""
        return await shown_page(request, services, lambda bearer: _held_out(bearer, name, row, taskset))

    return routes


async def _rollouts(
    services: Services, name: str, shown: dict[str, Any], group: str | None, wanted: str | None, after: str | None
) -> str:
    summary = await experiments.summary.work(services, name=name, after=after)
    id = summary.id
    step = shown["step"]
    bounds = {key: shown[key] for key in ("order", "state", "finish", "min_reward", "max_reward", "cursor")}
    where = {"first_step": step, "last_step": step, **bounds, "limit": ROLLOUTS if step is None else STEP_ROLLOUTS}
    page = await experiences.experiences.work(services, name=id, **where)
    matches, refusal = await _matches(services, id, shown["q"], step)
    cell_groups = groups_of(page.items, shown["colour"])
    listed = [UUID(cells.id) for cells in cell_groups[:MOST_PROMPTS]]
    prompts = await groups.prompts.work(services, name=id, group=listed)
    chosen = wanted or await _first_id(services, id, group, page.items, matches)
    answer = {} if chosen is None else await _answer(services, id, chosen, shown, cell_groups)

    def url(**changed: Any) -> str:
        cursor = None if changed.keys() - {"id"} else shown["cursor"]
        choices = {**shown, "cursor": cursor, **changed}
        changes = {key: to for key, to in choices.items() if to is not None and to != _USUAL.get(key)}
        return f"/runs/{quote(id, safe='')}/rollouts" + (f"?{urlencode(changes)}" if changes else "")

    return render(
        "rollouts.html",
        services.clock,
        run=summary,
        groups=cell_groups,
        prompts={prompt.group: prompt for prompt in prompts.items},
        matches=matches,
        refusal=refusal,
        next=page.next,
        url=url,
        json=json_url(f"/v1/experiments/{id}/experiences", where),
        answer=answer,
        may_annotate=services.bearer.asker.role >= annotation_views.annotate.role,
        may_recompute=services.bearer.asker.role >= token_views.recompute.role,
        **shown,
    )


async def _matches(services: Services, id: str, q: str, step: int | None) -> tuple[words.WordsFound | None, str]:
    """Returns the answers with the words, or the reason for none."""
    if not q:
        return None, ""
    try:
        return await words.words.work(services, name=id, q=q, step=step, limit=50), ""
    except RftdError as error:
        return None, error.what


async def _first_id(
    services: Services,
    id: str,
    group: str | None,
    rows: list[ExperienceRow],
    matches: words.WordsFound | None,
) -> str | None:
    """Returns the rollout shown without a choice: the first of the group, of the matches, or of the list."""
    if group is not None:
        texts = await text.group_text.work(services, name=id, group=group, limit=1, chars=1)
        return texts.items[0].experience.id if texts.items else None
    if matches is not None:
        return matches.items[0].experience.id if matches.items else None
    return rows[0].id if rows else None


async def _answer(
    services: Services, id: str, chosen: str, shown: dict[str, Any], cell_groups: list[CellGroup]
) -> dict[str, Any]:
    """Returns the parts of the page about one answer."""
    answer = await text.experience_text.work(services, name=id, experience=chosen, chars=shown["chars"])
    row = answer.rollout.experience
    page = await experiences.experiences.work(services, name=id, group=UUID(row.group), limit=MOST_MEMBERS)
    members = sorted(page.items, key=lambda member: member.rollout)
    is_compared = len(members) <= _COMPARED and sum(member.response_tokens for member in members) <= COMPARED_TOKENS
    # Without texts to compare, the group is read for its failed rollouts.
    limit, chars = (_COMPARED, COMPARED_CHARS) if is_compared else (1, 1)
    group = await text.group_text.work(services, name=id, group=row.group, limit=limit, chars=chars)
    parts = parts_of(answer.rollout, group.items if is_compared else ())
    versions: list[VersionLine] = []
    if answer.task is not None:
        same = {"row": answer.task.row, "stage": row.stage, "order": "oldest", "limit": _VERSIONS}
        of_row = await experiences.experiences.work(services, name=id, **same)
        versions = versions_of(of_row.items, row.group, shown["colour"])
    marks = await annotation_views.annotated.work(services, name=id, limit=1000)
    return {
        "text": answer,
        "row": row,
        "parts": parts,
        "has_alone": has_alone(parts),
        "missed": (row.reward or 0.0) <= 0 and holds_truth(answer.rollout, answer.truth),
        "cells": next(iter(groups_of(members, shown["colour"]))).cells,
        "failed": failed_words(group.failed),
        "versions": versions,
        "keys": neighbours_of(row, members, cell_groups, versions),
        "notes": [note for note in marks.notes if note.experience == row.id],
        "labels": next((mark.labels for mark in marks.rollouts if mark.experience == row.id), {}),
    }


async def _drops(services: Services, name: str, stage: int | None) -> str:
    page = await experiments.one.work(services, name=name)
    id = page.experiment.summary.id
    dropped = await drop_views.drops.work(services, name=id, stage=stage)
    return render(
        "drops.html",
        services.clock,
        run=page.experiment.summary,
        books=page.experiment.books,
        drops=dropped,
        json=json_url(f"/v1/experiments/{id}/drops", {"stage": stage}),
    )


async def _evaluations(services: Services, name: str, shown: dict[str, Any]) -> str:
    summary = await experiments.summary.work(services, name=name)
    id = summary.id
    rows = (await history.evals.work(services, name=id)).items
    tasksets = list(dict.fromkeys(row.taskset for row in rows))
    taskset = shown["taskset"] or (tasksets[-1] if tasksets else None)
    of_taskset = [row for row in rows if row.taskset == taskset]
    versions = [row.version for row in of_taskset]
    version = shown["version"] if shown["version"] is not None else (versions[-1] if versions else None)
    against = shown["against"] if shown["against"] is not None else next((v for v in versions if v != version), None)
    choice = {**shown, "taskset": taskset, "version": version, "against": against}
    page = None
    if version is not None and of_taskset:
        page = await evaluations.evaluation.work(services, name=id, limit=ANSWERS, **choice)
    usual = {"order": "worst", "offset": 0}

    def url(**changed: Any) -> str:
        choices = {**choice, "offset": 0, **changed}
        changes = {key: to for key, to in choices.items() if to is not None and to != usual.get(key)}
        return f"/runs/{quote(id, safe='')}/evaluations?{urlencode(changes)}"

    return render(
        "evaluations.html",
        services.clock,
        run=summary,
        page=page,
        evals=of_taskset,
        tasksets=tasksets,
        differing=differing,
        url=url,
        json=json_url(f"/v1/experiments/{id}/evals", {"taskset": taskset}),
        **choice,
    )


async def _held_out(services: Services, name: str, row: int, taskset: str | None) -> str:
    summary = await experiments.summary.work(services, name=name)
    page = await evaluations.held_out.work(services, name=summary.id, row=row, taskset=taskset)
    return render(
        "held_out.html",
        services.clock,
        run=summary,
        page=page,
        json=json_url(f"/v1/experiments/{summary.id}/held-out/{row}", {"taskset": taskset}),
    )
