"""The route /login: a one-time link signs a browser in, by a cookie hidden from scripts."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from rftd.daemon.http.api.schema import answers
from rftd.daemon.http.views.problem import Problem
from rftd.daemon.trust.keyring import SESSION_S, Keyring

_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>rftd</title></head>
<body><h1>{title}</h1><p>{text}</p></body>
</html>
"""
SIGNED_IN: Final = _PAGE.format(title="Signed in", text="This browser may use the daemon until tomorrow at the latest.")
NO_LINK: Final = _PAGE.format(title="Sign in", text="Type <code>rftd open</code> where the daemon's commands work.")
STALE_LINK: Final = _PAGE.format(
    title="Not signed in", text="This link is not valid. A link works once, for five minutes: <code>rftd open</code>."
)
CODE_CHARACTERS: Final = 100

Code = Annotated[
    str | None, Query(max_length=CODE_CHARACTERS, description="The code of a one-time link, which `rftd open` makes.")
]
_HTML: Final = {"text/html": {"schema": {"type": "string"}}}


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
    async def login(code: Code = None) -> Response:
        """Signs a browser in by a one-time link, with a session cookie."""
        if keyring is None:
            return _page(SIGNED_IN)
        if code is None:
            return _page(NO_LINK)
        cookie = keyring.sessions.open(code)
        if cookie is None:
            return _page(STALE_LINK, status=401)
        page = _page(SIGNED_IN)
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


def _page(text: str, *, status: int = 200) -> Response:
    return Response(text, status_code=status, media_type="text/html; charset=utf-8")
