"""`Tokens`: the tokens that a running daemon takes, read anew whenever their files change."""

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
TOKEN_CHARACTERS: Final = 512
"""A longer one is refused unread."""


@dataclass(frozen=True, slots=True)
class NotTaken:
    """The reason why a token is not taken. Only the daemon's log and metrics have it, never an answer."""

    reason: Reason
    name: str = ""
    """The name of a token that is known, and has expired."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """An asker with the digest of the token that was shown."""

    asker: Asker
    digest: str


class Tokens:
    """The owner's token, the one in the daemon's environment, and the named ones."""

    def __init__(self, root: Path, *, clock: Clock, logger: Logger, from_environ: str | None = None) -> None:
        """`from_environ` is the value of RFTD_TOKEN, an owner's token too. Raises TokenFileError."""
        self._file = TokenFile(root)
        self._clock = clock
        self._logger = logger
        self._from_environ = digest_of(from_environ) if from_environ else None
        self.owner_token = self._file.ensure_owner()
        """The owner's token at the start."""
        self._owner = digest_of(self.owner_token)
        self._owner_stamp = _stamp_of(self._file.owner_path)
        self._entries: tuple[TokenEntry, ...] = ()
        self._stamp: tuple[int, ...] | None = ()  # of no file
        self.trouble = ""
        """The reason why named tokens are not taken; empty while all is well."""
        self._refresh()

    def entries(self) -> tuple[TokenEntry, ...]:
        """The named tokens now."""
        self._refresh()
        return self._entries

    def look_up(self, token: str) -> Bearer | NotTaken:
        """The bearer of a token, or the reason why there is none."""
        if not token:
            return NotTaken("missing")
        if len(token) > TOKEN_CHARACTERS or not token.isascii():
            return NotTaken("malformed")
        return self._of_digest(digest_of(token))

    def still(self, digest: str) -> Bearer | NotTaken:
        """The bearer of a token that was shown before: its role now, or the reason why it is taken no more."""
        return self._of_digest(digest)

    def _of_digest(self, digest: str) -> Bearer | NotTaken:
        self._refresh()
        # All are compared, each in constant time: how long it takes says nothing of the digests.
        is_owner = hmac.compare_digest(digest, self._owner)
        if self._from_environ is not None:
            is_owner |= hmac.compare_digest(digest, self._from_environ)
        matching = [entry for entry in self._entries if hmac.compare_digest(digest, entry.sha256)]
        if is_owner:
            return Bearer(OWNER, digest)
        if not matching:
            return NotTaken("unknown")
        entry = matching[0]
        if entry.is_expired(self._clock.now_ns()):
            return NotTaken("expired", entry.name)
        return Bearer(asker_of(entry), digest)

    def _refresh(self) -> None:
        """Reads files that were replaced since; whatever cannot be read lets nobody in."""
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
                # The digest before stays: a file that somebody damaged must not lock the owner out for ever, and the
                # token of before is in nobody's hands but the owner's.
                self._logger.error("tokens.owner_unreadable", where=str(self._file.owner_path), reason=str(error))


def asker_of(entry: TokenEntry) -> Asker:
    """The asker that a named token stands for."""
    return Asker(entry.name, entry.access_role, entry.quota.within(QUOTAS[entry.role]))


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    """Differs whenever the file was replaced or written; None where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
