"""The route /login: a one-time link signs a browser in, by a cookie hidden from scripts."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Response

from rftd.daemon.http.api.schema import answers
from rftd.daemon.http.page.rendering import render
from rftd.daemon.http.views.problem import Problem
from rftd.daemon.trust.keyring import SESSION_S, Keyring
from rftd.ops.clock import SystemClock

_NOTICES: Final = {
    "signed in": ("Signed in", "This browser may use the daemon until tomorrow at the latest.", ""),
    "no link": (
        "Sign in",
        "Type this where the daemon's commands work, and open the printed link:",
        "rftd open",
    ),
    "stale link": ("Not signed in", "This link is not valid. A link works once, for five minutes:", "rftd open"),
}
"""Title, text and command of each notice."""
CODE_CHARACTERS: Final = 100
"""Maximum number of characters in a code."""

Code = Annotated[
    str | None, Query(max_length=CODE_CHARACTERS, description="The code of a one-time link, which `rftd open` makes.")
]
"""Query parameter: the code of a one-time link."""
Target = Annotated[
    str, Query(pattern=r"^/(studio(\?opened=[A-Za-z0-9_-]{1,64})?)?$", description="The page to go on to.")
]
"""Query parameter: the page shown after signing in."""
_HTML: Final = {"text/html": {"schema": {"type": "string"}}}
"""Content of the answers in the OpenAPI document."""


def router(keyring: Keyring | None) -> APIRouter:
    """Returns the sign-in route for browsers; without a keyring every browser is signed in."""
    routes = APIRouter(tags=["access"])

    @routes.get(
        "/login",
        responses={
            **answers(Problem),
            200: {"description": "A page that says so.", "content": _HTML},
            401: {"description": "The link is not valid: it was used, or is too old.", "content": _HTML},
        },
    )
    async def login(code: Code = None, to: Target = "/") -> Response:
        """Signs a browser in by a one-time link, with a session cookie."""
        if keyring is None:
            return notice("signed in", to=to)
        if code is None:
            return notice("no link")
        cookie = keyring.sessions.open(code)
        if cookie is None:
            return notice("stale link", status=401)
        page = notice("signed in", to=to)
        page.set_cookie(
            keyring.cookie,
            cookie,
            max_age=int(SESSION_S),
            path="/",
            secure=keyring.secure,
            httponly=True,
            samesite="strict",
        )
        return page

    return routes


def notice(name: Literal["signed in", "no link", "stale link"], *, status: int = 200, to: str = "/") -> Response:
    """Returns the page of a notice about signing in, with the HTTP status `status`.

    `signed in`, for browsers signed in just now and for those that need no sign-in, moves on to the address `to` by a
    meta refresh; the other notices stay, and ignore `to`.
    """
    title, text, command = _NOTICES[name]
    page = render(
        "notice.html",
        SystemClock(),
        title=title,
        text=text,
        command=command,
        onward=to if name == "signed in" else None,
        again_s=None,
    )
    return Response(page, status_code=status, media_type="text/html; charset=utf-8")
