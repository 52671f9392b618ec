"""`Keyring`: everything by which a daemon knows who asks: tokens, sessions of browsers, and what each has taken."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rftd.daemon.trust.asker import Asker
from rftd.daemon.trust.quota import QuotaUses
from rftd.daemon.trust.sessions import Sessions
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
