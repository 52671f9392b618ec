"""The route of the whole daemon for people: `/system`."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from rftd.daemon.http.api.pages import shown_page
from rftd.daemon.http.api.services import Services
from rftd.daemon.http.page.alarms import system_alarms_of
from rftd.daemon.http.page.rendering import render
from rftd.daemon.http.page.steering import refusal_of
from rftd.daemon.http.views import access, dead_letters, machine, system
from rftd.daemon.trust.asker import AccessRole

SHOWN_WORKERS: Final = 100
"""Maximum number of workers on the system page."""
SHOWN_LETTERS: Final = 50
"""Maximum number of dead letters on the system page."""


def router(services: Services) -> APIRouter:
    """Returns the route of the system's page; the API's document does not have it: it is for people."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/system")
    async def system_page(request: Request) -> Response:
        """The daemon: checks, machine, workers, streams with their lag, dead letters, tokens."""
        return await shown_page(request, services, _system)

    return routes


async def _system(services: Services) -> str:
    now = await system.system.work(services)
    return render(
        "system.html",
        services.clock,
        system=now,
        alarms=system_alarms_of(now),
        workers=await system.workers.work(services, limit=SHOWN_WORKERS),
        streams=(await system.streams.work(services)).items,
        machine=await machine.machine.work(services),
        pipelines=(await system.pipelines.work(services)).items,
        raised=await system.alerts.work(services),
        letters=await dead_letters.many.work(services, limit=SHOWN_LETTERS),
        tokens=await access.tokens.work(services),
        refusal=refusal_of(services, AccessRole.ADMIN),
    )
