"""`TABLE`: the rights of each kind of asker, as in docs/security.md; a test compares the two."""

from __future__ import annotations

from typing import Final, NamedTuple


class Trusted(NamedTuple):
    """One kind of asker: how it is authenticated, and its rights over experiments, files, variables, hosts and code."""

    who: str
    known_by: str
    """The means of authentication."""
    experiments: str
    """Allowed commands, and the experiments concerned."""
    files: str
    variables: str
    """Environment variables, including the daemon's secrets."""
    hosts: str
    code: str


_ALLOWED_FILES: Final = "below the configured `roots`"
"""Cell: files below the roots may be named."""
_ALLOWED_VARIABLES: Final = "`allow_env`; `secrets`, each for its hosts"
"""Cell: variables in the allow-lists may be named."""
_ALLOWED_HOSTS: Final = "public addresses; others by `allow_urls`"
"""Cell: public hosts and allowed addresses may be reached."""
_ALLOWED_CODE: Final = "of model folders in `allow_code`"
"""Cell: code of allowed model folders may run."""
_NONE: Final = "none"
"""Cell: nothing may be named."""

TABLE: Final = (
    Trusted(
        "owner",
        "`owner.token` of the data folder, or `RFTD_TOKEN` of the daemon",
        "every command, about everybody's",
        "whatever the daemon's user may",
        "any",
        "any",
        "any",
    ),
    Trusted(
        "admin",
        "a token of `rftd token add --role admin`",
        "every command, about everybody's; dead letters",
        _ALLOWED_FILES,
        _ALLOWED_VARIABLES,
        _ALLOWED_HOSTS,
        _ALLOWED_CODE,
    ),
    Trusted(
        "submit",
        "a token of `rftd token add --role submit`",
        "submits; commands about its own; reads everybody's",
        _ALLOWED_FILES,
        _ALLOWED_VARIABLES,
        _ALLOWED_HOSTS,
        _ALLOWED_CODE,
    ),
    Trusted(
        "read",
        "a token of `rftd token add --role read`",
        "reads everybody's, metrics and logs",
        _NONE,
        _NONE,
        _NONE,
        _NONE,
    ),
    Trusted(
        "worker",
        "the log's socket, open to the daemon's user alone, or the broker's login",
        "writes what its role owns, of its own experiment; gives no command",
        "the folder of its experiment, and what its specification names",
        "what its specification and role need",
        "what its specification names",
        "what its specification names",
    ),
    Trusted(
        "producer of records",
        "the broker's login and ACLs; a record does not say who wrote it",
        "submits; commands about what producers submitted",
        _ALLOWED_FILES,
        _ALLOWED_VARIABLES,
        _ALLOWED_HOSTS,
        _ALLOWED_CODE,
    ),
    Trusted(
        "user of a served experiment",
        "`RFTD_SERVE_KEY`",
        "completions and feedback of that experiment",
        _NONE,
        _NONE,
        _NONE,
        _NONE,
    ),
    Trusted(
        "agent of a rollout",
        "the key that the endpoint makes for each rollout",
        "completions of that rollout, within its limits",
        "what the process of the agent may",
        "what the agent's own environment has",
        "what the process of the agent may",
        "its own",
    ),
)
"""All kinds of askers, in order of decreasing rights."""


def table_as_markdown() -> str:
    """Returns the table as Markdown, for docs/security.md."""
    head = ("who", "known by", "experiments", "files", "variables", "hosts", "code")
    rows = [head, ("---",) * len(head), *((f"**{row.who}**", *row[1:]) for row in TABLE)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
