"""The page for people: the routes `/` and `/runs/{name}`, over the views of the API, and all scripts and styles."""

from __future__ import annotations

import http
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response

from rftd.daemon.http.api.problem import problem_of
from rftd.daemon.http.api.routes import BEARER, asker_of
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.page.alarms import alarms_of
from rftd.daemon.http.page.assets import assets, release
from rftd.daemon.http.page.configuration import difference_texts
from rftd.daemon.http.page.curves import curves_of
from rftd.daemon.http.page.formats import scale_of
from rftd.daemon.http.page.rendering import render
from rftd.daemon.http.page.run_list import Shown, as_tree, parameters_of
from rftd.daemon.http.page.steering import acts_of, refusal_of, steering_of
from rftd.daemon.http.views import annotations as annotation_views
from rftd.daemon.http.views import differences, experiments
from rftd.daemon.http.views.experiments import RunOrder
from rftd.daemon.http.views.moment import ENDED
from rftd.daemon.http.views.route import NAME_CHARACTERS, POSITION_CHARACTERS
from rftd.daemon.run.why.wait import what_of
from rftd.daemon.trust.asker import AccessRole
from rftd.ops.errors import NotFoundError, RftdError, WaitTimeoutError
from rftd.storage.queries.cursor import CURSOR_CHARACTERS
from rftd.storage.queries.experiments import ExperimentSummary

RUNS_PER_PAGE: Final = 100
"""Maximum number of runs on a page of the list."""
SEARCH_CHARACTERS: Final = 500
"""Maximum number of characters in a search."""
SHOWN_NOTES: Final = 20
"""Maximum number of notes shown."""
MOST_FURTHER: Final = 16
"""Maximum number of curves besides the curated ones."""
MOST_OVER: Final = 4
"""Maximum number of further runs in the curves: with the run itself, as many as there are colours."""
_RETRY_INTERVAL_S: Final = 2
"""Seconds until a page read too early for the tables is read again."""
_CACHE_FOREVER: Final = "public, max-age=31536000, immutable"
"""Cache control of files whose URL changes with their content."""
Search = Annotated[str, Query(max_length=SEARCH_CHARACTERS, pattern=r"^[^\x00]*$")]
"""Query parameter: the text of a search."""
RunName = Annotated[str, Path(max_length=NAME_CHARACTERS)]
"""Path parameter: the name of an experiment."""
Metrics = Annotated[list[str] | None, Query(max_length=MOST_FURTHER, description="Further figures to draw.")]
"""Query parameter: further figures to draw."""
Over = Annotated[list[str] | None, Query(max_length=MOST_OVER, description="Runs to lay over this one.")]
"""Query parameter: runs to lay over this one."""
Cursor = Annotated[str | None, Query(max_length=CURSOR_CHARACTERS)]
"""Query parameter: the position after the last item of the page before."""
After = Annotated[str | None, Query(max_length=POSITION_CHARACTERS)]
"""Query parameter: the position in the log to be reached by the tables before the page is read."""


def router(services: Services) -> APIRouter:
    """Returns the routes of the page; the API's document has none of them: they are for people."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def runs(
        request: Request, q: Search = "", show: Shown = "all", order: RunOrder = "newest", cursor: Cursor = None
    ) -> Response:
        """The list of runs: state, progress, rewards, held-out scores and signal of each, live."""
        return await shown_page(request, services, lambda bearer: _runs(bearer, q, show, order, cursor))

    @routes.get("/runs/{name}")
    async def run(
        request: Request, name: RunName, metric: Metrics = None, over: Over = None, after: After = None
    ) -> Response:
        """One run: what happens now, alarms, figures, and curves, with a curve for each `metric`, and a line in each
        curve for the runs `over` it.
        """
        # What htmx reads again is the present alone: no other runs to choose from, no differences of files.
        laid = None if "hx-request" in request.headers else over or []
        return await shown_page(request, services, lambda bearer: _run(bearer, name, metric or [], laid, after))

    @routes.get("/static/{name}")
    async def static(name: str) -> Response:
        """A script or style of the page, under an address with its digest."""
        asset = assets().get(name)
        if asset is None:
            raise NotFoundError(f"no file {name[:80]!r}")
        return Response(asset.body, media_type=asset.media_type, headers={"Cache-Control": _CACHE_FOREVER})

    return routes


async def _runs(services: Services, q: str, show: Shown, order: RunOrder, cursor: str | None) -> str:
    wanted = {**parameters_of(q, show), "order": order, "limit": RUNS_PER_PAGE, "cursor": cursor}
    page = await experiments.listed.work(services, **wanted)
    shown = {"q": q, "show": show, "order": order}
    usual: dict[str, str] = {"q": "", "show": "all", "order": "newest"}

    def url(**changed: str) -> str:
        changes = {name: text for name, text in {**shown, **changed}.items() if text and text != usual.get(name)}
        return f"/?{urlencode(changes)}" if changes else "/"

    return render(
        "runs.html",
        services.clock,
        rows=as_tree(page.items),
        states=page.states,
        scale=scale_of([run.reward_curve for run in page.items]),
        next=page.next,
        json=json_url("/v1/experiments", wanted),
        url=url,
        acts_of=acts_of,
        refusal=refusal_of(services),
        **shown,
    )


async def _run(services: Services, name: str, further: list[str], over: list[str] | None, after: str | None) -> str:
    page = await experiments.one.work(services, name=name, after=after)
    id = page.experiment.summary.id
    state = page.experiment.summary.state
    why = await experiments.why.work(services, name=id)
    notes = (await annotation_views.annotated.work(services, name=id, limit=SHOWN_NOTES)).notes
    services.operations.looked(id)
    offered = [] if over is None else (await experiments.listed.work(services, limit=RUNS_PER_PAGE)).items
    laid_over = [name for name in over or () if name]

    def url(over: list[str]) -> str:
        return json_url(f"/runs/{quote(id, safe='')}", {"metric": further or None, "over": over or None})

    return render(
        "run.html",
        services.clock,
        page=page,
        why=why,
        ended=state in ENDED,
        steering=await steering_of(services, services.rehearsing, UUID(id), state),
        run_notes=[note for note in notes if note.experience is None],
        alarms=alarms_of(page, why),
        what_of=what_of,
        curves=curves_of(further),
        further=further,
        rollouts=f"/runs/{id}/rollouts?step=",
        others=[summary for summary in offered if summary.id != id],
        over=laid_over,
        url=url,
        **await _laid_over(services, page.experiment.summary, laid_over),
    )


async def _laid_over(services: Services, run: ExperimentSummary, over: list[str]) -> dict[str, Any]:
    """Returns the runs in the curves and the differences of their files; a refusal in words for a wrong name."""
    alone: dict[str, Any] = {"runs": [run], "differences": [], "refusal": "", "diff_json": ""}
    if not over:
        return alone
    try:
        different = await differences.diff.work(services, name=[run.id, *over])
    except RftdError as error:
        return {**alone, "refusal": str(error)}
    return {
        "runs": different.items,
        "differences": [(line.field, difference_texts(line.values)) for line in different.differences],
        "refusal": "",
        "diff_json": json_url("/v1/diff", {"name": [laid.id for laid in different.items]}),
    }


def json_url(path: str, parameters: dict[str, Any]) -> str:
    """Returns the address of a view's JSON with the parameters of its page."""
    wanted = {name: text for name, text in parameters.items() if text is not None}
    return f"{path}?{urlencode(wanted, doseq=True)}" if wanted else path


async def shown_page(request: Request, services: Services, page: Callable[[Services], Awaitable[str]]) -> Response:
    """Returns a page as HTML; an error as a page too."""
    asker_of(request, AccessRole.READ)
    bearer_services = services.for_bearer(request.scope[BEARER])
    try:
        return html(await page(bearer_services))
    except RftdError as error:
        problem = problem_of(error)
        text = f"{problem.detail} ({problem.code})"
        words = {"title": problem.title, "text": text, "command": problem.fix}
        again_s = _RETRY_INTERVAL_S if isinstance(error, WaitTimeoutError) else None
        notice = render("notice.html", services.clock, onward=None, again_s=again_s, **words)
        return html(notice, status=error.http_status)


def html(text: str, *, status: int | http.HTTPStatus = 200) -> Response:
    """Returns HTML as a response, read anew with each visit."""
    headers = {"Cache-Control": "private, no-cache", "Rftd-Page": release()}
    return Response(text, status_code=int(status), media_type="text/html; charset=utf-8", headers=headers)
