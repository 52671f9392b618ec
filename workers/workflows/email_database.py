"""`EmailInbox`: searches of one person's emails in a database of SQLite, read-only."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from rftd.ops.errors import RolloutError

_BODY_CHARS: Final = 20_000
"""Characters of an email shown at most."""
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_OWN: Final = """(e.from_address = :inbox OR EXISTS (
    SELECT 1 FROM recipients r WHERE r.email_id = e.id AND r.recipient_address = :inbox))"""
_SEARCH: Final = """
SELECT e.message_id, e.date, e.from_address, e.subject, snippet(emails_fts, -1, '', '', ' ... ', 15)
FROM emails e JOIN emails_fts ON emails_fts.rowid = e.id
WHERE emails_fts MATCH :words AND {conditions}
ORDER BY e.date DESC, e.message_id LIMIT :most"""
_READ: Final = f"""
SELECT e.id, e.message_id, e.date, e.from_address, e.subject, e.body FROM emails e
WHERE e.message_id = :message AND {_OWN}"""  # noqa: S608 - of constants


class EmailInbox:
    """The emails from and to one address.

    Tables: `emails` (id, message_id, subject, from_address, date, body), `recipients` (email_id, recipient_address)
    and the FTS5 index `emails_fts` over subject and body.
    """

    def __init__(self, path: Path, address: str, most: int) -> None:
        self._path = path
        self._address = address
        self._most = most

    def search(
        self,
        keywords: list[str] | str,
        from_addr: str | None = None,
        to_addr: str | None = None,
        sent_after: str | None = None,
        sent_before: str | None = None,
    ) -> list[dict[str, Any]]:
        """Returns the newest emails with all keywords. Blocks. Raises ValueError for arguments in another form."""
        words = keywords.split() if isinstance(keywords, str) else [str(word) for word in keywords]
        if not words:
            raise ValueError("no keywords")
        # Quoted, so that no word is an operator of the index.
        quoted = " ".join('"' + word.replace('"', '""') + '"' for word in words)
        parameters: dict[str, Any] = {"inbox": self._address, "words": quoted, "most": self._most}
        conditions = [_OWN]
        filters = {
            "e.from_address = :from_addr": ("from_addr", from_addr),
            "EXISTS (SELECT 1 FROM recipients t WHERE t.email_id = e.id AND t.recipient_address = :to_addr)": (
                "to_addr",
                to_addr,
            ),
            "e.date >= :sent_after": ("sent_after", _day(sent_after)),
            "e.date < :sent_before": ("sent_before", _day(sent_before)),
        }
        for condition, (name, wanted) in filters.items():
            if wanted is not None:
                conditions.append(condition)
                parameters[name] = wanted
        rows = self._rows(_SEARCH.format(conditions=" AND ".join(conditions)), parameters)
        return [dict(zip(("message_id", "date", "from", "subject", "snippet"), row, strict=True)) for row in rows]

    def read(self, message_id: str) -> dict[str, Any]:
        """Returns an email of the inbox with its recipients. Blocks. Raises ValueError for an unknown id."""
        rows = self._rows(_READ, {"inbox": self._address, "message": message_id})
        if not rows:
            raise ValueError(f"the inbox has no email {message_id!r}")
        number, *fields = rows[0]
        email = dict(zip(("message_id", "date", "from", "subject", "body"), fields, strict=True))
        recipients = self._rows(
            "SELECT recipient_address FROM recipients WHERE email_id = :id ORDER BY recipient_address", {"id": number}
        )
        return {**email, "to": [row[0] for row in recipients], "body": str(email["body"])[:_BODY_CHARS]}

    def _rows(self, query: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        try:
            uri = f"{self._path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                return connection.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise RolloutError(f"cannot read the emails: {error}", where=str(self._path)) from error


def _day(text: str | None) -> str | None:
    if text is not None and not _DAY.fullmatch(str(text)):
        raise ValueError(f"{text!r} is no day in the form YYYY-MM-DD")
    return text
