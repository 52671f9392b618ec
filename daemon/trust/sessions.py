"""`Sessions`: browsers that are signed in, by one-time links; in memory, so that a restart signs everybody out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from rftd.daemon.trust.token_file import digest_of
from rftd.daemon.trust.tokens import Bearer, Refusal, Tokens
from rftd.ops.clock import Clock

LINK_S: Final = 300.0
"""The time for which a one-time link is good."""
SESSION_S: Final = 12 * 3600.0
"""The time for which a browser stays signed in."""
LINKS: Final = 256
"""Unused links at once; the oldest go first."""
SESSIONS: Final = 1024
"""Browsers that are signed in at once; the oldest are signed out first."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A link or a session: the digest of the token that made it, and its end."""

    token_digest: str
    ends_s: float


class Sessions:
    """One-time links and the sessions that they open. A session has the rights of the token that made its link."""

    def __init__(self, tokens: Tokens, *, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._links: dict[str, _Kept] = {}
        self._sessions: dict[str, _Kept] = {}

    def new_link(self, token_digest: str) -> str:
        """The code of a new link for whoever showed the token."""
        return self._keep(self._links, token_digest, LINK_S, LINKS)

    def open(self, code: str) -> str | None:
        """The cookie of a new session; None for a code that is unknown, used, or too old."""
        link = self._links.pop(digest_of(code), None)
        if link is None or link.ends_s <= self._clock.monotonic_s():
            return None
        if isinstance(self._tokens.still(link.token_digest), Refusal):
            return None
        return self._keep(self._sessions, link.token_digest, SESSION_S, SESSIONS)

    def look_up(self, cookie: str) -> Bearer | Refusal:
        """The bearer whose session it is, while its token is taken."""
        digest = digest_of(cookie)
        session = self._sessions.get(digest)
        if session is None:
            return Refusal("session")
        bearer = self._tokens.still(session.token_digest)
        if session.ends_s <= self._clock.monotonic_s() or isinstance(bearer, Refusal):
            self._sessions.pop(digest, None)
            return Refusal("session")
        return bearer

    def _keep(self, among: dict[str, _Kept], token_digest: str, lasts_s: float, most: int) -> str:
        now_s = self._clock.monotonic_s()
        for digest in [digest for digest, kept in among.items() if kept.ends_s <= now_s]:
            del among[digest]
        while len(among) >= most:
            del among[next(iter(among))]
        secret = secrets.token_urlsafe(32)
        among[digest_of(secret)] = _Kept(token_digest, now_s + lasts_s)
        return secret
