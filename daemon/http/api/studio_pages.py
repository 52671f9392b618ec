"""The route of the studio, `/studio`: a form made from the declared fields of an experiment file."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from rftd.daemon.config.form_fields import FormField, form_fields
from rftd.daemon.config.yaml_text import scalar
from rftd.daemon.http.api.pages import shown_page
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.page.rendering import render
from rftd.daemon.http.page.starts import ESSENTIAL, STARTS
from rftd.daemon.http.page.steering import refusal_of
from rftd.daemon.http.views import experiments
from rftd.daemon.http.views.route import NAME_CHARACTERS

FORMER_RUNS = 50
"""Maximum number of earlier runs offered as templates."""
Opened = Annotated[str, Query(max_length=64, description="Id of a file sent by `rftd studio FILE`.")]
"""Query parameter: the id of a file kept by `rftd studio FILE`."""
Former = Annotated[str, Query(alias="from", max_length=NAME_CHARACTERS, description="A run to begin with.")]
"""Query parameter: the run whose file the form begins with."""


def router(services: Services) -> APIRouter:
    """Returns the route of the studio; the API's document does not have it: it is for people."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/studio")
    async def studio(request: Request, former: Former = "", opened: Opened = "") -> Response:
        """A new run, by a form: essential fields or all, checked as one types, with the file as YAML."""
        return await shown_page(request, services, lambda bearer: _studio(bearer, former, opened))

    return routes


async def _studio(services: Services, former: str, opened: str) -> str:
    config: dict[str, Any] | None = None
    if former:
        config = (await experiments.one.work(services, name=former)).experiment.config
    fields = form_fields()
    sections: dict[str, list[FormField]] = {}
    for field in fields:
        sections.setdefault(field.section, []).append(field)
    by_path = {field.path: field for field in fields}
    return render(
        "studio.html",
        services.clock,
        essential={title: by_path[path] for path, title in ESSENTIAL.items() if path in by_path},
        sections=sections,
        starts={title: _with_root(services, text) for title, text in STARTS.items()},
        former=former,
        opened=services.opened_files.of(opened, services.asker.name) if opened else None,
        beginning=None if config is None else msgspec.json.encode(config).decode(),
        runs=(await experiments.listed.work(services, limit=FORMER_RUNS)).items,
        refusal=refusal_of(services),
    )


def _with_root(services: Services, text: str) -> str:
    """Returns a beginning whose checkpoints lie in the daemon's folder; unchanged for a daemon without a folder."""
    if services.daemon_log is None:
        return text
    return f"checkpoint_root_dir: {scalar(str(services.daemon_log.parent / 'checkpoints'))}\n{text}"
