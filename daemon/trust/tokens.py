"""`Tokens`: the tokens accepted by a running daemon, read again whenever their files change."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from rftd.daemon.trust.asker import OWNER, Asker
from rftd.daemon.trust.quota import QUOTAS
from rftd.daemon.trust.token_file import TokenEntry, TokenFile, TokenFileError, digest_of
from rftd.ops.clock import Clock
from rftd.ops.logs import Logger

Reason: TypeAlias = Literal["missing", "malformed", "unknown", "expired", "session"]
"""Reason why a token is not accepted."""
TOKEN_CHARACTERS: Final = 512
"""Maximum length of a token; longer ones are refused unread."""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Reason for refusing a token, for the daemon's log and metrics only, never for an answer."""

    reason: Reason
    name: str = ""
    """Name of a known, but expired token."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """An asker with the digest of the presented token."""

    asker: Asker
    digest: str


class Tokens:
    """The owner's token, the token in the daemon's environment, and the named tokens."""

    def __init__(self, root: Path, *, clock: Clock, logger: Logger, from_environ: str | None = None) -> None:
        """`from_environ` is the value of RFTD_TOKEN, also an owner's token. Raises TokenFileError."""
        self._file = TokenFile(root)
        self._clock = clock
        self._logger = logger
        self._from_environ = digest_of(from_environ) if from_environ else None
        self.owner_token = self._file.ensure_owner()
        """The owner's token at the start."""
        self._owner = digest_of(self.owner_token)
        self._owner_stamp = _stamp_of(self._file.owner_path)
        self._entries: tuple[TokenEntry, ...] = ()
        self._stamp: tuple[int, ...] | None = ()  # no file yet
        self.trouble = ""
        """Reason why named tokens are not accepted; empty if they are."""
        self._refresh()

    def entries(self) -> tuple[TokenEntry, ...]:
        """Returns the current named tokens, reading the file again if it has changed."""
        self._refresh()
        return self._entries

    def look_up(self, token: str) -> Bearer | NotTaken:
        """Returns the bearer of a token, or the reason for refusing the token."""
        if not token:
            return NotTaken("missing")
        if len(token) > TOKEN_CHARACTERS or not token.isascii():
            return NotTaken("malformed")
        return self._of_digest(digest_of(token))

    def still(self, digest: str) -> Bearer | NotTaken:
        """Returns the current bearer of a token presented earlier, or the reason why the token is no longer valid."""
        return self._of_digest(digest)

    def _of_digest(self, digest: str) -> Bearer | NotTaken:
        self._refresh()
        # All digests are compared in constant time: the duration reveals nothing about the digests.
        is_owner = hmac.compare_digest(digest, self._owner)
        if self._from_environ is not None:
            is_owner |= hmac.compare_digest(digest, self._from_environ)
        matching = [candidate for candidate in self._entries if hmac.compare_digest(digest, candidate.sha256)]
        if is_owner:
            return Bearer(OWNER, digest)
        if not matching:
            return NotTaken("unknown")
        named_token = matching[0]
        if named_token.is_expired(self._clock.now_ns()):
            return NotTaken("expired", named_token.name)
        return Bearer(asker_of(named_token), digest)

    def _refresh(self) -> None:
        """Reads replaced files again; an unreadable file admits nobody."""
        if (stamp := _stamp_of(self._file.path)) != self._stamp:
            self._stamp = stamp
            try:
                self._entries, self.trouble = self._file.read(), ""
            except TokenFileError as error:
                self._entries, self.trouble = (), f"{error.where}: {error.what}"
                self._logger.error("tokens.unreadable", where=error.where, reason=error.what, fix=error.remedy)
        if (stamp := _stamp_of(self._file.owner_path)) != self._owner_stamp:
            self._owner_stamp = stamp
            try:
                self._owner = digest_of(self._file.owner_token())
            except (FileNotFoundError, TokenFileError) as error:
                # The previous digest stays: a damaged file must not lock the owner out for ever, and only the owner has
                # the previous token.
                self._logger.error("tokens.owner_unreadable", where=str(self._file.owner_path), reason=str(error))


def asker_of(named_token: TokenEntry) -> Asker:
    """Returns the asker represented by a named token, with the role's limits filled in."""
    return Asker(named_token.name, named_token.access_role, named_token.quota.within(QUOTAS[named_token.role]))


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    """Returns a value that changes whenever the file is replaced or written; None for a missing file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
