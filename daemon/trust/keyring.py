"""`Keyring`: identification of askers in a daemon: tokens, browser sessions, and the use of quotas."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rftd.daemon.trust.asker import Asker
from rftd.daemon.trust.quota import QuotaUses
from rftd.daemon.trust.token_file import digest_of
from rftd.daemon.trust.tokens import Bearer, NotTaken, Tokens, asker_of
from rftd.ops.clock import Clock
from rftd.ops.logs import Logger

WARNING_INTERVAL_S: Final = 60.0
"""Minimum interval between two log lines about the same refused token."""


class Keyring:
    """The tokens of one data folder in use by a daemon, with browser sessions and quota use."""

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock,
        logger: Logger,
        from_environ: str | None = None,
        secure: bool = False,
        cookie: str = "rftd_session",
    ) -> None:
        """`secure`: browsers connect over TLS; `cookie` is the name of the session cookie. Raises TokenFileError."""
        self.tokens = Tokens(root, clock=clock, logger=logger, from_environ=from_environ)
        self.sessions = Sessions(self.tokens, clock=clock)
        self.uses = QuotaUses(clock)
        self.secure = secure
        self.cookie = cookie
        self._clock = clock
        self._logger = logger
        self._warned_s: dict[str, float] = {}

    def of_token(self, token: str) -> Bearer | NotTaken:
        """Returns the bearer of the token in a header, or the reason for refusing it."""
        return self._with_warning(self.tokens.look_up(token))

    def of_cookie(self, cookie: str) -> Bearer | NotTaken:
        """Returns the bearer of a browser session, or the reason for refusing it."""
        return self.sessions.look_up(cookie)

    def link_for(self, bearer: Bearer) -> str:
        """Returns the path of a one-time link with the rights of `bearer`."""
        return f"/login?code={self.sessions.new_link(bearer.digest)}"

    def owner_link(self) -> str:
        """Returns the path of a one-time link for the owner."""
        bearer = self.tokens.look_up(self.tokens.owner_token)
        return self.link_for(bearer) if isinstance(bearer, Bearer) else "/login"

    def askers(self) -> tuple[Asker, ...]:
        """Returns the askers represented by named tokens."""
        return tuple(asker_of(named_token) for named_token in self.tokens.entries())

    def _with_warning(self, bearer: Bearer | NotTaken) -> Bearer | NotTaken:
        if isinstance(bearer, NotTaken) and bearer.name:
            now_s = self._clock.monotonic_s()
            if now_s - self._warned_s.get(bearer.name, -WARNING_INTERVAL_S) >= WARNING_INTERVAL_S:
                self._warned_s[bearer.name] = now_s
                self._logger.warning("token.refused", token_name=bearer.name, reason=bearer.reason)
        return bearer


LINK_S: Final = 300.0
"""Lifetime of a one-time link."""
SESSION_S: Final = 12 * 3600.0
"""Lifetime of a browser session."""
LINKS: Final = 256
"""Maximum number of unused links; the oldest are dropped first."""
SESSIONS: Final = 1024
"""Maximum number of browser sessions; the oldest are signed out first."""


@dataclass(frozen=True, slots=True)
class _Login:
    """A link or a session: the digest of the token behind it, and the expiry."""

    token_digest: str
    ends_s: float


class Sessions:
    """One-time links and browser sessions opened by them. A session has the rights of the token behind the link."""

    def __init__(self, tokens: Tokens, *, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._links: dict[str, _Login] = {}
        self._sessions: dict[str, _Login] = {}

    def new_link(self, token_digest: str) -> str:
        """Returns the code of a new link for the bearer of the token."""
        return self._store(self._links, token_digest, LINK_S, LINKS)

    def open(self, code: str) -> str | None:
        """Opens a session and returns its cookie; None for an unknown, used, or expired code."""
        link = self._links.pop(digest_of(code), None)
        if link is None or link.ends_s <= self._clock.monotonic_s():
            return None
        if isinstance(self._tokens.still(link.token_digest), NotTaken):
            return None
        return self._store(self._sessions, link.token_digest, SESSION_S, SESSIONS)

    def look_up(self, cookie: str) -> Bearer | NotTaken:
        """Returns the bearer of the session, as long as the token is valid."""
        digest = digest_of(cookie)
        session = self._sessions.get(digest)
        if session is None:
            return NotTaken("session")
        bearer = self._tokens.still(session.token_digest)
        if session.ends_s <= self._clock.monotonic_s() or isinstance(bearer, NotTaken):
            self._sessions.pop(digest, None)
            return NotTaken("session")
        return bearer

    def _store(self, among: dict[str, _Login], token_digest: str, lasts_s: float, most: int) -> str:
        now_s = self._clock.monotonic_s()
        for digest in [digest for digest, login in among.items() if login.ends_s <= now_s]:
            del among[digest]
        while len(among) >= most:
            del among[next(iter(among))]
        secret = secrets.token_urlsafe(32)
        among[digest_of(secret)] = _Login(token_digest, now_s + lasts_s)
        return secret
