"""Access to the daemon: one-time links for browsers, and the tokens with the present use of their limits."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from rftd.daemon.http.views.route import Daemon, command, read
from rftd.daemon.trust.asker import AccessRole

_TAG = "access"
"""Chapter of the OpenAPI document with these routes."""
FILE_CHARACTERS: Final = 1 << 20
"""Maximum number of characters in an experiment file for the studio: 1 Mi."""


class NewLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of POST /v1/login-links: optionally an experiment file for the studio."""

    file: Annotated[str, Meta(max_length=FILE_CHARACTERS)] = ""
    """Experiment file as YAML, kept in memory for five minutes and opened by `/studio?opened=ID`; empty: none."""
    name: Annotated[str, Meta(max_length=200)] = ""
    """Name of the file, shown in the studio."""


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link signing one browser in, once, within five minutes."""

    path: str
    """Path at this daemon's address. A secret: the first user of the link has the rights of the token."""
    role: str
    """Role of the browser after signing in."""
    opened: str = ""
    """Id of the file in the studio; empty without a file."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """One named token: its limits and their present use. None: only the daemon's general limits apply."""

    name: str
    """Name of the token, under which its commands are recorded."""
    role: str
    """Role of the token: `read`, `submit` or `admin`."""
    expires_ns: int | None
    """Time of expiry, in nanoseconds since 1970; null for a token that does not expire."""
    submissions_per_hour: int | None
    """Maximum number of submissions within an hour; null if only the daemon's general limit applies."""
    submitted: int
    """Number of submissions within the last hour."""
    queued: int | None
    """Maximum number of experiments in the queue; null if only the daemon's general limit applies."""
    waiting: int
    """Number of experiments in the queue."""
    connections: int | None
    """Maximum number of requests under way at once; null if only the daemon's general limit applies."""
    connected: int
    """Number of requests under way."""
    streams: int | None
    """Maximum number of open event streams; null if only the daemon's general limit applies."""
    streaming: int
    """Number of open event streams."""


class TokenList(msgspec.Struct, frozen=True, kw_only=True):
    """The named tokens in use: all for an admin, else the asker's own."""

    asker: str
    """Name of the requesting token, or `owner`."""
    role: str
    """Role of the requesting token."""
    items: list[TokenView]
    """The named tokens visible to the asker."""


class AllowList(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the daemon's allow-list configuration, with the folders of no effect."""

    line: str
    """Name of the line, such as `roots` or `allow_env`."""
    allows: list[str]
    """Allowed folders, patterns, variables with their hosts, or addresses."""
    faulty: list[str]
    """Folders of the line without effect, because they are links, lie behind a link, or do not exist."""


class AllowLists(msgspec.Struct, frozen=True, kw_only=True):
    """The names allowed in submissions of everybody but the owner."""

    items: list[AllowList]
    """The lines of the daemon's allow-list configuration."""


@command("/v1/login-links", NewLink, LoginLink, tag=_TAG, optional=True, dry=True, role=AccessRole.READ)
async def new_link(daemon: Daemon, body: NewLink) -> LoginLink:
    """Makes a one-time link for a browser, with the rights of the requesting token."""
    opened = daemon.open_file(body.name, body.file) if body.file else ""
    return LoginLink(path=daemon.login_path(), role=daemon.asker.role.label, opened=opened)


@read("/v1/tokens", TokenList, tag=_TAG)
async def tokens(daemon: Daemon) -> TokenList:
    """The named tokens, their limits and present use; never a token itself."""
    waiting = await daemon.operations.queued_by()
    token_views = [
        TokenView(
            name=holder.name,
            role=holder.role,
            expires_ns=holder.expires_ns,
            submissions_per_hour=quota.submissions_per_hour,
            submitted=use.submissions_per_hour,
            queued=quota.queued,
            waiting=waiting.get(holder.name, 0),
            connections=quota.connections,
            connected=use.connections,
            streams=quota.streams,
            streaming=use.streams,
        )
        for holder, quota, use in daemon.holders()
    ]
    return TokenList(asker=daemon.asker.name, role=daemon.asker.role.label, items=token_views)


@read("/v1/allowances", AllowLists, tag=_TAG, role=AccessRole.ADMIN)
async def allowances(daemon: Daemon) -> AllowLists:
    """The names allowed in submissions of everybody but the owner, by the lines of the daemon's configuration."""
    import asyncio  # not above: the command line imports this module, and needs no event loop to check a file

    lists = daemon.operations.allowances
    faults = await asyncio.to_thread(lambda: list(lists.faults()))
    return AllowLists(
        items=[
            AllowList(line=line, allows=list(names), faulty=[folder for at, folder in faults if at == line])
            for line, names in lists.lists()
        ]
    )
