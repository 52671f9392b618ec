"""`TokenFile`: the named tokens of a data folder as digests, and the owner's token.

Both files are accessible only to the owner (mode 0600). The file is written atomically by a rename, under a lock; a
daemon notices a replaced file by inode and time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from rftd.daemon.trust.asker import OWNER, PRODUCER, AccessRole
from rftd.daemon.trust.quota import QUOTAS, Quota
from rftd.ops.decoding import UNREADABLE, json_decoder
from rftd.ops.durable import write_durable
from rftd.ops.errors import ConflictError, NotFoundError, UsageError

PREFIX: Final = "rftd_"
"""Prefix of every token, recognised by people and by scanners for leaked secrets."""
RANDOM_BYTES: Final = 32
"""Number of random bytes in a token."""
TOKEN_FORM: Final = re.compile(r"rftd_[A-Za-z0-9_-]{43}")
"""Form of a token: the prefix and 32 bytes as base64url."""
NAME_FORM: Final = re.compile(r"[a-z][a-z0-9._-]{0,62}[a-z0-9]|[a-z]")
"""Form of a token's name."""
RESERVED: Final = frozenset({OWNER.name, PRODUCER.name})
"""Names of built-in askers, not available to tokens."""
GRANTED_ROLES: Final = tuple(QUOTAS)
"""Roles available to named tokens."""


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One named token in the token file: name, role, digest, expiry and limits."""

    name: str
    role: str
    sha256: str
    """Digest of the token in hexadecimal digits; the token itself is never stored."""
    created_ns: int
    expires_ns: int | None = None
    quota: Quota = Quota()
    """Limits differing from the role's limits."""

    @property
    def access_role(self) -> AccessRole:
        """The role as a comparable value."""
        return AccessRole[self.role.upper()]

    def is_expired(self, now_ns: int) -> bool:
        """True from the moment of expiry on; never for a token without expiry."""
        return self.expires_ns is not None and now_ns >= self.expires_ns


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tokens: tuple[TokenEntry, ...] = ()


class TokenFileError(UsageError):
    """The file of tokens or the owner's token cannot be read, or other users may read or write it."""

    code = "RFTD-TOK-001"
    remedy = "Restore the file from a backup or remove it; then make the tokens anew with `rftd token add`."


def new_token() -> str:
    """Returns a new token of 256 random bits, with the prefix of all tokens."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def digest_of(token: str) -> str:
    """Returns the stored form of a token. A plain digest suffices, because 256 random bits cannot be guessed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class TokenFile:
    """The files `tokens.json` and `owner.token` of one data folder, read and written atomically."""

    def __init__(self, root: Path) -> None:
        self.path = root / "tokens.json"
        self.owner_path = root / "owner.token"
        self._lock_path = root / "tokens.lock"

    def read(self) -> tuple[TokenEntry, ...]:
        """Returns the named tokens; empty without a file. Raises TokenFileError."""
        try:
            text = read_private(self.path)
        except FileNotFoundError:
            return ()
        try:
            named_tokens = json_decoder(_Content).decode(text).tokens
        except UNREADABLE as error:
            raise TokenFileError(f"is not a file of tokens: {error}", where=str(self.path)) from None
        names = [named_token.name for named_token in named_tokens]
        for named_token in named_tokens:
            if (
                not NAME_FORM.fullmatch(named_token.name)
                or named_token.name in RESERVED
                or names.count(named_token.name) > 1
            ):
                raise TokenFileError("holds a name that no token may have, or one twice", where=str(self.path))
            if named_token.role not in GRANTED_ROLES or not re.fullmatch(r"[0-9a-f]{64}", named_token.sha256):
                raise TokenFileError(f"the entry {named_token.name!r} is damaged", where=str(self.path))
        return named_tokens

    def owner_token(self) -> str:
        """Returns the owner's token. Raises TokenFileError, and FileNotFoundError before the daemon's first start."""
        token = read_private(self.owner_path).decode("ascii", "replace").strip()
        if not TOKEN_FORM.fullmatch(token):
            raise TokenFileError("holds no token", where=str(self.owner_path), fix="rftd token rotate owner")
        return token

    def ensure_owner(self) -> str:
        """Returns the owner's token, created if missing. Raises TokenFileError."""
        with self._locked():  # of two daemons starting at once, only one creates the token
            try:
                return self.owner_token()
            except FileNotFoundError:
                return self._new_owner()

    def rotate_owner(self) -> str:
        """Returns a new owner's token; the previous one becomes invalid immediately."""
        with self._locked():
            return self._new_owner()

    def _new_owner(self) -> str:
        token = new_token()
        _write_private(self.owner_path, token.encode() + b"\n")
        return token

    def add(self, entry_name: str, role: str, *, created_ns: int, expires_ns: int | None, quota: Quota) -> str:
        """Creates a named token. Raises UsageError for an invalid name, ConflictError for a name in use."""
        check_name(entry_name)
        token = new_token()
        new_entry = TokenEntry(
            name=entry_name,
            role=role,
            sha256=digest_of(token),
            created_ns=created_ns,
            expires_ns=expires_ns,
            quota=quota,
        )
        with self._locked():
            named_tokens = self.read()
            if any(named_token.name == entry_name for named_token in named_tokens):
                raise ConflictError(
                    f"a token {entry_name!r} exists already",
                    field="NAME",
                    fix=f"rftd token rotate {entry_name}, or choose another name",
                )
            self._write((*named_tokens, new_entry))
        return token

    def remove(self, entry_name: str) -> None:
        """Removes a named token, which becomes invalid immediately. Raises NotFoundError for an unknown name."""
        with self._locked():
            named_tokens = self.read()
            removed = _named(named_tokens, entry_name)
            self._write(tuple(named_token for named_token in named_tokens if named_token is not removed))

    def rotate(self, entry_name: str) -> str:
        """Creates a new token for a name, with unchanged role, limits and expiry. Raises NotFoundError."""
        token = new_token()
        with self._locked():
            named_tokens = self.read()
            old = _named(named_tokens, entry_name)
            new = msgspec.structs.replace(old, sha256=digest_of(token))
            self._write(tuple(new if named_token is old else named_token for named_token in named_tokens))
        return token

    def _write(self, named_tokens: tuple[TokenEntry, ...]) -> None:
        content = msgspec.json.format(msgspec.json.encode(_Content(tokens=named_tokens)), indent=1)
        _write_private(self.path, content + b"\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Excludes other writers: two processes modifying the same version would lose one change."""
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def check_name(name: str) -> None:
    """Raises UsageError for an invalid or reserved token name."""
    if not NAME_FORM.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a valid token name",
            field="NAME",
            fix="use lower-case letters, digits, `.`, `_` and `-`, a letter first",
        )
    if name in RESERVED:
        raise UsageError(f"{name!r} is a reserved name", field="NAME", fix="choose another")


def read_private(path: Path) -> bytes:
    """Returns the content of a regular file accessible only to the current user.

    Raises TokenFileError, and FileNotFoundError for a missing file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TokenFileError(f"cannot be read: {error.strerror}", where=str(path)) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise TokenFileError(
                "other users may read or write it, or it is not yours",
                where=str(path),
                fix=f"look who changed it; then chmod 600 {path}",
            )
        return file.read()


def _write_private(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    # Created before it is filled: a file restricted afterwards would be open to others for a moment. A file left by a
    # crash belongs to an earlier process until removed.
    temporary.unlink(missing_ok=True)
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    write_durable(path, content)


def _named(named_tokens: tuple[TokenEntry, ...], name: str) -> TokenEntry:
    for named_token in named_tokens:
        if named_token.name == name:
            return named_token
    raise NotFoundError(f"no token {name[:80]!r}", field="NAME", fix="see rftd token ls")
