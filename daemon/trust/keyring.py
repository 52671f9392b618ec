"""`Keyring`: everything by which a daemon knows who asks: tokens, sessions of browsers, and what each has taken."""

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

TOLD_EVERY_S: Final = 60.0
"""A refused token that is known is named in the log once in this time."""


class Keyring:
    """The tokens of one data folder, in use."""

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
        """`secure` says that browsers come over TLS; `cookie` is the name of the session's. Raises TokenFileError."""
        self.tokens = Tokens(root, clock=clock, logger=logger, from_environ=from_environ)
        self.sessions = Sessions(self.tokens, clock=clock)
        self.uses = QuotaUses(clock)
        self.secure = secure
        self.cookie = cookie
        self._clock = clock
        self._logger = logger
        self._told_s: dict[str, float] = {}

    def of_token(self, token: str) -> Bearer | NotTaken:
        """The bearer of the token in a header."""
        return self._noted(self.tokens.look_up(token))

    def of_cookie(self, cookie: str) -> Bearer | NotTaken:
        """The bearer of a browser's session."""
        return self.sessions.look_up(cookie)

    def link_for(self, bearer: Bearer) -> str:
        """The path of a one-time link with the rights of `bearer`."""
        return f"/login?code={self.sessions.new_link(bearer.digest)}"

    def owner_link(self) -> str:
        """The path of a one-time link for the owner."""
        bearer = self.tokens.look_up(self.tokens.owner_token)
        return self.link_for(bearer) if isinstance(bearer, Bearer) else "/login"

    def askers(self) -> tuple[Asker, ...]:
        """The askers that named tokens stand for."""
        return tuple(asker_of(entry) for entry in self.tokens.entries())

    def _noted(self, bearer: Bearer | NotTaken) -> Bearer | NotTaken:
        if isinstance(bearer, NotTaken) and bearer.name:
            now_s = self._clock.monotonic_s()
            if now_s - self._told_s.get(bearer.name, -TOLD_EVERY_S) >= TOLD_EVERY_S:
                self._told_s[bearer.name] = now_s
                self._logger.warning("token.refused", token_name=bearer.name, reason=bearer.reason)
        return bearer


LINK_S: Final = 300.0
"""The time for which a one-time link is good."""
SESSION_S: Final = 12 * 3600.0
"""The time for which a browser stays signed in."""
LINKS: Final = 256
"""Unused links at once; the oldest go first."""
SESSIONS: Final = 1024
"""Browsers that are signed in at once; the oldest are signed out first."""


@dataclass(frozen=True, slots=True)
class _Login:
    """A link or a session: the digest of the token that made it, and its end."""

    token_digest: str
    ends_s: float


class Sessions:
    """One-time links and the sessions that they open. A session has the rights of the token that made its link."""

    def __init__(self, tokens: Tokens, *, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._links: dict[str, _Login] = {}
        self._sessions: dict[str, _Login] = {}

    def new_link(self, token_digest: str) -> str:
        """The code of a new link for whoever showed the token."""
        return self._keep(self._links, token_digest, LINK_S, LINKS)

    def open(self, code: str) -> str | None:
        """The cookie of a new session; None for a code that is unknown, used, or too old."""
        link = self._links.pop(digest_of(code), None)
        if link is None or link.ends_s <= self._clock.monotonic_s():
            return None
        if isinstance(self._tokens.still(link.token_digest), NotTaken):
            return None
        return self._keep(self._sessions, link.token_digest, SESSION_S, SESSIONS)

    def look_up(self, cookie: str) -> Bearer | NotTaken:
        """The bearer whose session it is, while its token is taken."""
        digest = digest_of(cookie)
        session = self._sessions.get(digest)
        if session is None:
            return NotTaken("session")
        bearer = self._tokens.still(session.token_digest)
        if session.ends_s <= self._clock.monotonic_s() or isinstance(bearer, NotTaken):
            self._sessions.pop(digest, None)
            return NotTaken("session")
        return bearer

    def _keep(self, among: dict[str, _Login], token_digest: str, lasts_s: float, most: int) -> str:
        now_s = self._clock.monotonic_s()
        for digest in [digest for digest, kept in among.items() if kept.ends_s <= now_s]:
            del among[digest]
        while len(among) >= most:
            del among[next(iter(among))]
        secret = secrets.token_urlsafe(32)
        among[digest_of(secret)] = _Login(token_digest, now_s + lasts_s)
        return secret
