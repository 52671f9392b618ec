"""Routes of the pages on a run's file and its record: configuration, history, lineage, timeline."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec
from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.http.api.pages import Cursor, RunName, Search, json_url, shown_page
from rftd.daemon.http.api.run_pages import Word
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.page.configuration import SetBy, difference_texts, sections_of
from rftd.daemon.http.page.history import Form, grouped, json_of, lines_of
from rftd.daemon.http.page.rendering import render
from rftd.daemon.http.page.timeline import longest_waits, sentence_of
from rftd.daemon.http.views import comparison, configuration, differences, experiments, history, timeline
from rftd.daemon.http.views import events as event_views
from rftd.daemon.http.views.comparison import HELD_OUT, REWARD, Comparison
from rftd.daemon.run.why.wait import next_of, what_of
from rftd.ops.errors import RftdError
from rftd.storage.lineage.graph import DEPTH
from rftd.storage.lineage.tree import tree_lines
from rftd.streams.events.catalogue import definitions

EVENTS: Final = 200
"""Number of events on one page of the history."""
ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Form of an id within a text: a UUID in lower case."""
_OFFERED_RUNS: Final = 100
"""Maximum number of runs offered for comparison with a configuration."""


def router(services: Services) -> APIRouter:
    """Returns the routes of these pages; the API's document has none of them: they are for people."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/runs/{name}/configuration")
    async def configured(
        request: Request, name: RunName, q: Search = "", show: SetBy = "all", against: Word = None
    ) -> Response:
        """The experiment file as resolved, with origins, and its differences against another run."""
        return await shown_page(
            request, services, lambda bearer: _configuration(bearer, name, q, show, against or None)
        )

    @routes.get("/runs/{name}/timeline")
    async def lanes(request: Request, name: RunName) -> Response:
        """Lanes of rollout slots and of the trainer, drawn by a script; shares and longest waits in words."""
        return await shown_page(request, services, lambda bearer: _timeline(bearer, name))

    @routes.get("/runs/{name}/history")
    async def events(
        request: Request,
        name: RunName,
        form: Form = "grouped",
        type: Word = None,
        cursor: Cursor = None,
        before: Cursor = None,
        begin: Literal["first"] | None = None,
    ) -> Response:
        """The events of a run by subject, one by one, or as JSON; what is pending; older and newer by cursor."""
        choice = {"type": type or None, "cursor": cursor, "before": before, "begin": begin}
        return await shown_page(request, services, lambda bearer: _history(bearer, name, form, choice))

    @routes.get("/runs/{name}/lineage")
    async def lineage(
        request: Request, name: RunName, id: Word = None, depth: Annotated[int, Query(ge=0, le=12)] = DEPTH
    ) -> Response:
        """The origin and the fate of one thing, by default of the newest weights, as an indented tree with links."""
        return await shown_page(request, services, lambda bearer: _lineage(bearer, name, id or None, depth))

    return routes


async def _configuration(services: Services, name: str, q: str, show: SetBy, against: str | None) -> str:
    run = await experiments.summary.work(services, name=name)
    resolved = await configuration.config.work(services, name=run.id)
    offered = await experiments.listed.work(services, limit=_OFFERED_RUNS)
    path = _path(run.id, "configuration")
    shown = {"q": q, "show": show, "against": against}

    def url(**changed: str) -> str:
        return _url(path, {**shown, **changed}, {"q": "", "show": "all"})

    return render(
        "configuration.html",
        services.clock,
        run=run,
        path=path,
        url=url,
        origins={**dict.fromkeys(("file", "flag", "default", "derived"), 0), **_origins(resolved)},
        sections=sections_of(resolved.fields, q, show),
        others=[summary for summary in offered.items if summary.id != run.id],
        json=f"/v1/experiments/{run.id}/config",
        **shown,
        **await _compared(services, run.id, against),
    )


def _origins(resolved: configuration.Configuration) -> Counter[str]:
    return Counter(field.origin for field in resolved.fields)


async def _compared(services: Services, id: str, against: str | None) -> dict[str, Any]:
    """Returns the parts of the page about another run; a refusal in words for a wrong name."""
    nothing: dict[str, Any] = {"comparison": None, "differences": [], "figures": [], "refusal": "", "diff_json": ""}
    if against is None:
        return nothing
    try:
        compared = await comparison.comparison.work(services, name=[id, against])
        different = await differences.diff.work(services, name=[run.id for run in compared.items])
    except RftdError as error:
        return {**nothing, "refusal": str(error)}
    return {
        **nothing,
        "comparison": compared,
        "differences": [(line.field, difference_texts(line.values)) for line in different.differences],
        "figures": _figures(compared),
        "diff_json": json_url("/v1/diff", {"name": [run.id for run in compared.items]}),
    }


def _figures(compared: Comparison) -> list[str]:
    """Returns the figures of the comparison: the reward, and held-out scores."""
    names = {name for point in compared.points for standing in point.standings if standing for name in standing.figures}
    return [name for name in (REWARD, *sorted(names)) if name in names and (name == REWARD or _is_score(name))]


def _is_score(name: str) -> bool:
    return name.startswith(HELD_OUT) and "/" not in name.removeprefix(HELD_OUT)


async def _timeline(services: Services, name: str) -> str:
    run = await experiments.summary.work(services, name=name)
    whole = await timeline.timeline.work(services, name=run.id)
    roles = Counter(worker.role for worker in whole.workers)
    return render(
        "timeline.html",
        services.clock,
        run=run,
        sentence=sentence_of(whole),
        waits=longest_waits(whole),
        trainers=roles.pop("trainer", 0),
        explorers=roles.total(),
        json=f"/v1/experiments/{run.id}/timeline",
    )


async def _history(services: Services, name: str, form: Form, choice: dict[str, str | None]) -> str:
    run = await experiments.summary.work(services, name=name)
    why = await experiments.why.work(services, name=run.id)
    bounds = {key: choice[key] for key in ("cursor", "before") if choice[key] is not None}
    # Without any place to begin, the newest events.
    where: dict[str, Any] = bounds or ({} if choice["begin"] else {"newest": EVENTS})
    wanted = {"type": None if choice["type"] is None else [choice["type"]], "limit": EVENTS, **where}
    page = await event_views.events.work(services, name=run.id, **wanted)
    path = _path(run.id, "history")

    def url(**changed: str | None) -> str:
        return _url(path, {"form": form, **choice, **changed}, {"form": "grouped"})

    def lineage_of(id: str) -> str:
        return _url(_path(run.id, "lineage"), {"id": id}, {})

    return render(
        "history.html",
        services.clock,
        run=run,
        path=path,
        url=url,
        form=form,
        limit=EVENTS,
        waits=[wait for wait in why.waits if wait.role != "experiment" or wait.on_whom],
        what_of=what_of,
        next_of=next_of,
        types=[definition.name for definition in definitions()],
        page=page,
        is_paged=bool(bounds or choice["begin"]),
        events=page.items,
        groups=grouped(page.items, run.id) if form == "grouped" else [],
        lines=lines_of(page.items) if form == "all" else [],
        raw=json_of(msgspec.to_builtins(page.items)) if form == "json" else "",
        lineage=lineage_of(f"{run.id}/weights/{run.step}") if run.step else lineage_of(run.id),
        lineage_of=lineage_of,
        json=json_url(f"/v1/experiments/{run.id}/events", wanted),
        **choice,
    )


async def _lineage(services: Services, name: str, wanted: str | None, depth: int) -> str:
    run = await experiments.summary.work(services, name=name)
    id = wanted or (f"{run.id}/weights/{run.step}" if run.step else run.id)
    path = _path(run.id, "lineage")
    refusal = ""
    graph = None
    try:
        graph = await history.lineage.work(services, id=id, depth=depth)
    except RftdError as error:
        refusal = str(error)

    def url(**changed: Any) -> str:
        return _url(path, {"id": id, "depth": depth, **changed}, {"depth": DEPTH})

    return render(
        "lineage.html",
        services.clock,
        run=run,
        path=path,
        url=url,
        id=id,
        depth=depth,
        refusal=refusal,
        root=next((node for node in graph.nodes if node.id == graph.root), None) if graph else None,
        up=tree_lines(graph, "up") if graph else [],
        down=tree_lines(graph, "down") if graph else [],
        bound=graph.bound if graph else None,
        short=lambda text: ID.sub(lambda match: match[0][:8], text),
        json=json_url("/v1/lineage", {"id": id, "depth": depth}),
    )


def _path(id: str, page: str) -> str:
    return f"/runs/{quote(id, safe='')}/{page}"


def _url(path: str, choices: dict[str, Any], usual: dict[str, Any]) -> str:
    """Returns the address of a page with the unusual ones of its choices."""
    changes = {key: to for key, to in choices.items() if to is not None and to != usual.get(key)}
    return f"{path}?{urlencode(changes)}" if changes else path
