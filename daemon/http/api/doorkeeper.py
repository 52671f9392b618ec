"""`Doorkeeper`: authenticates requests, and refuses foreign origins, foreign host names and invalid tokens.

Every program of every user, and every web page in a browser, can reach the port of a daemon on a laptop. So a request
needs a token; a foreign Origin is refused (cross-site requests), and so is a Host header with a name not belonging to
the daemon (DNS rebinding).
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.types import Scope

from rftd.daemon.http.api.problem import ForbiddenError, RefusedError
from rftd.daemon.http.api.services import EVERYBODY
from rftd.daemon.trust.keyring import Keyring
from rftd.daemon.trust.quota import QuotaUses
from rftd.daemon.trust.tokens import Bearer, NotTaken

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/login"})
"""Paths without a token. They reveal nothing about experiments, and /readyz gives its reasons only with a token."""
STATIC: Final = "/static/"
"""Prefix of the paths of rftd's own static files, served without a token."""


class Doorkeeper:
    """Authentication of one daemon's requests: host, origin, then token or session cookie."""

    def __init__(self, keyring: Keyring | None, *, hosts: frozenset[str] = frozenset()) -> None:
        """Without a `keyring` every request is the owner's. `hosts` are this daemon's host names in lower case."""
        self.keyring = keyring
        self.hosts = hosts
        """The daemon's host names in lower case; replaced when its certificate is renewed."""
        self.refused: Counter | None = None
        """Counts refusals by their reason, once there are metrics."""

    @property
    def uses(self) -> QuotaUses | None:
        """Current use of the tokens' quotas; None without a keyring."""
        return None if self.keyring is None else self.keyring.uses

    def bearer_of(self, scope: Scope) -> Bearer | None:
        """The authenticated bearer of a request; None for an open path without a valid token.

        Raises ForbiddenError for a foreign host or origin, and one and the same RefusedError for any invalid token.
        """
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._serves(host):
            self._count("host")
            raise ForbiddenError(
                f"this daemon does not serve the host {host[:200]!r}",
                field="Host",
                fix="use its IP address, or start it with --allow-host NAME",
            )
        origin = headers.get("origin")
        # Compared with the Host header, not with an address of ours: behind a proxy or a tunnel only the two agree.
        if origin is not None and urlsplit(origin).netloc != host:
            self._count("origin")
            raise ForbiddenError(f"a page of {origin[:200]} may not use this daemon", field="Origin")
        if self.keyring is None:
            return EVERYBODY
        path = scope["path"]
        bearer = self._shown(self.keyring, headers, scope["method"])
        if isinstance(bearer, Bearer):
            return bearer
        if path in OPEN_PATHS or path.startswith(STATIC):
            return None
        self._count(bearer.reason)
        raise RefusedError(
            "no valid token", field="Authorization", fix="set RFTD_TOKEN to a token of this daemon: rftd token add NAME"
        )

    def _shown(self, keyring: Keyring, headers: Headers, method: str) -> Bearer | NotTaken:
        """The bearer of a request's Authorization header, else of its session cookie."""
        authorization = headers.get("authorization")
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            return keyring.of_token(token.strip()) if scheme.lower() == "bearer" else NotTaken("malformed")
        cookie = _cookie(headers, keyring.cookie)
        if cookie is None:
            return NotTaken("missing")
        bearer = keyring.of_cookie(cookie)
        if isinstance(bearer, Bearer):
            self._check_page(headers, method)
        return bearer

    def _check_page(self, headers: Headers, method: str) -> None:
        """Raises ForbiddenError for a request with a cookie, possibly caused by another site's page.

        SameSite is not enough: on one host, all ports are one site.
        """
        site = headers.get("sec-fetch-site")
        is_own_page = site in ("same-origin", "none") if site is not None else None
        if is_own_page is None and method not in ("GET", "HEAD"):
            is_own_page = headers.get("origin") is not None  # compared with the host before
        if is_own_page is False:
            self._count("origin")
            raise ForbiddenError("with a cookie only this daemon's own pages may ask this", field="Sec-Fetch-Site")

    def _serves(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self.hosts:
            return True
        try:
            # Any address passes: DNS rebinding, the attack prevented here, needs a name.
            ip_address(name)
        except ValueError:
            return False
        return True

    def _count(self, reason: str) -> None:
        if self.refused is not None:
            self.refused.labels(reason).inc()


def _cookie(headers: Headers, name: str) -> str | None:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if morsel is None else morsel.value
