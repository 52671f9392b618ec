"""`EmailSearchWorkflow`: a rollout of questions to an inbox in SQLite, with tools to search and read it.

After the ART-E agent of OpenPipe and Trinity-RFT's workflow of the same name, with the tables of their database.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec

from rftd.ops.errors import RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.trajectory import Trajectory

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer


_BODY_CHARS: Final = 20_000
"""Characters of an email shown at most."""
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
"""Form of a day."""
_INBOX_CONDITION: Final = """(e.from_address = :inbox OR EXISTS (
    SELECT 1 FROM recipients r WHERE r.email_id = e.id AND r.recipient_address = :inbox))"""
"""Condition for emails from or to the inbox."""
_SEARCH: Final = """
SELECT e.message_id, e.date, e.from_address, e.subject, snippet(emails_fts, -1, '', '', ' ... ', 15)
FROM emails e JOIN emails_fts ON emails_fts.rowid = e.id
WHERE emails_fts MATCH :words AND {conditions}
ORDER BY e.date DESC, e.message_id LIMIT :most"""
"""Query for emails with keywords."""
_READ: Final = f"""
SELECT e.id, e.message_id, e.date, e.from_address, e.subject, e.body FROM emails e
WHERE e.message_id = :message AND {_INBOX_CONDITION}"""  # noqa: S608 - of constants
"""Query for one email."""


class EmailInbox:
    """The emails from and to one address.

    Tables: `emails` (id, message_id, subject, from_address, date, body), `recipients` (email_id, recipient_address)
    and the FTS5 index `emails_fts` over subject and body.
    """

    def __init__(self, path: Path, address: str, most: int) -> None:
        """`most` is the maximum number of emails found by a search."""
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
        conditions = [_INBOX_CONDITION]
        filters = {
            "e.from_address = :from_addr": ("from_addr", from_addr),
            "EXISTS (SELECT 1 FROM recipients t WHERE t.email_id = e.id AND t.recipient_address = :to_addr)": (
                "to_addr",
                to_addr,
            ),
            "e.date >= :sent_after": ("sent_after", _checked_day(sent_after)),
            "e.date < :sent_before": ("sent_before", _checked_day(sent_before)),
        }
        for condition, (name, wanted) in filters.items():
            if wanted is not None:
                conditions.append(condition)
                parameters[name] = wanted
        rows = self._select(_SEARCH.format(conditions=" AND ".join(conditions)), parameters)
        return [dict(zip(("message_id", "date", "from", "subject", "snippet"), row, strict=True)) for row in rows]

    def read(self, message_id: str) -> dict[str, Any]:
        """Returns an email of the inbox with its recipients. Blocks. Raises ValueError for an unknown id."""
        rows = self._select(_READ, {"inbox": self._address, "message": message_id})
        if not rows:
            raise ValueError(f"the inbox has no email {message_id!r}")
        number, *fields = rows[0]
        email = dict(zip(("message_id", "date", "from", "subject", "body"), fields, strict=True))
        recipients = self._select(
            "SELECT recipient_address FROM recipients WHERE email_id = :id ORDER BY recipient_address", {"id": number}
        )
        return {**email, "to": [row[0] for row in recipients], "body": str(email["body"])[:_BODY_CHARS]}

    def _select(self, query: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Returns the rows of a query, on a connection of its own. Raises RolloutError."""
        try:
            uri = f"{self._path.absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                return connection.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise RolloutError(f"cannot read the emails: {error}", where=str(self._path)) from error


def _checked_day(text: str | None) -> str | None:
    """Returns a day unchanged. Raises ValueError for another form."""
    if text is not None and not _DAY.fullmatch(str(text)):
        raise ValueError(f"{text!r} is no day in the form YYYY-MM-DD")
    return text


_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
"""A tool call in an answer."""
_NO_ANSWER: Final = "I don't know"
"""Final answer of a rollout that gives the question up; earns the reward 0."""
_RULES: Final = """\
You answer a question from the emails of {inbox}. Today is {today}. In each turn think briefly, and end with one call:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>

search_emails: the newest {most} emails with all `keywords` (a list of words), optionally of `from_addr`, to \
`to_addr`, `sent_after` and `sent_before` (YYYY-MM-DD). Returns ids and snippets.
read_email: the whole email of a `message_id`.
return_final_answer: your `answer` in a sentence, with `sources`, the list of message ids that it comes from. Answer \
"I don't know" if the inbox does not tell. You have {turns} turns."""
"""System prompt with the tools."""

Turns = Annotated[int, msgspec.Meta(ge=1, le=100)]
"""Type of the number of turns."""
Results = Annotated[int, msgspec.Meta(ge=1, le=100)]
"""Type of the number of emails found by a search."""


class EmailSearchWorkflow:
    """Searches and reads the row's inbox until the final answer, which the reward scores; no answer earns 0."""

    default_reward: ClassVar[str | None] = "llm_judge_reward"
    """Name of the reward for tasksets that name no reward themselves."""

    def __init__(self, *, path: str, max_turns: Turns = 10, max_results: Results = 10) -> None:
        """`path` is the database, opened read-only; a row has `inbox_address`, and optionally `query_date` and
        `message_ids`, the emails with the answer.
        """
        self._path = Path(path)
        self._max_turns = max_turns
        self._max_results = max_results

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """Returns the conversation as one rollout. Raises RolloutError for a row without an inbox."""
        address = task.raw.get("inbox_address")
        if not isinstance(address, str) or not address:
            raise RolloutError("the row has no inbox_address", where=task.where, fix="add the column")
        search = _SearchRun(EmailInbox(self._path, address, self._max_results), task)
        rules = task.system_prompt or _RULES.format(
            inbox=address,
            today=task.raw.get("query_date") or "unknown",
            turns=self._max_turns,
            most=self._max_results,
        )
        messages = [Message("system", rules), *(message for message in task.messages if message.role != "system")]
        trajectory = Trajectory()
        turns = 0
        while turns < self._max_turns and search.answer is None:
            response = await model.chat(messages)
            trajectory.add(response)
            if response.truncated:
                break
            turns += 1
            shown = await search.step(response.text)
            messages += [Message("assistant", response.text), Message("user", shown)]
        scored = RewardResult(value=0.0)
        if search.answer not in (None, "", _NO_ANSWER):
            scored = await reward.score(str(search.answer), task, turns=trajectory.turns)
        result = trajectory.result(scored)
        return msgspec.structs.replace(result, metrics={**result.metrics, **search.metrics, "turns": float(turns)})


class _SearchRun:
    """The calls of one rollout, and what they met."""

    def __init__(self, inbox: EmailInbox, task: Task) -> None:
        """`task` names the emails with the answer."""
        self._inbox = inbox
        sources = task.raw.get("message_ids") or ()
        self._right = {str(source) for source in sources} if isinstance(sources, list | tuple) else {str(sources)}
        """Ids of the emails with the answer."""
        self.answer: str | None = None
        """Final answer to the question; None before the answer is given."""
        self.metrics = {"bad_calls": 0.0, "found_right_email": 0.0, "read_right_email": 0.0, "sources_right": 0.0}
        """Figures of the search by name: the number of bad calls, and three flags of success, 0 or 1."""

    async def step(self, text: str) -> str:
        """Executes the call in an answer, and returns the message for the next turn."""
        calls = _CALL.findall(text)
        try:
            call = json.loads(calls[-1]) if calls else None
            arguments = call["arguments"] if isinstance(call, dict) else None
            if not isinstance(call, dict) or not isinstance(arguments, dict):
                raise ValueError("no call: write one JSON object between <tool_call> and </tool_call>")
            shown = await self._execute(str(call.get("name")), arguments)
        except (ValueError, KeyError, TypeError) as error:
            self.metrics["bad_calls"] += 1
            shown = f"error: {error}"
        return f"<tool_response>\n{shown}\n</tool_response>"

    async def _execute(self, name: str, arguments: dict[str, Any]) -> str:
        """Executes a call, and returns the result as text. Raises ValueError, KeyError or TypeError for an invalid
        call.
        """
        if name == "search_emails":
            rows = await asyncio.to_thread(self._inbox.search, **arguments)
            self._note_metric("found_right_email", any(row["message_id"] in self._right for row in rows))
            return json.dumps(rows, ensure_ascii=False)
        if name == "read_email":
            email = await asyncio.to_thread(self._inbox.read, str(arguments["message_id"]))
            self._note_metric("read_right_email", email["message_id"] in self._right)
            return json.dumps(email, ensure_ascii=False)
        if name == "return_final_answer":
            self.answer = str(arguments["answer"]).strip()
            sources = arguments.get("sources")
            named = {str(source) for source in sources} if isinstance(sources, list) else set()
            self._note_metric("sources_right", bool(named & self._right))
            return "done"
        raise ValueError(f"there is no tool {name!r}")

    def _note_metric(self, metric: str, right: bool) -> None:
        """Sets a metric to 1 if `right`; a metric of 1 stays 1."""
        self.metrics[metric] = max(self.metrics[metric], float(right))
