"""`EmailSearchWorkflow`: a rollout of questions to an inbox in SQLite, with tools to search and read it.

After the ART-E agent of OpenPipe and Trinity-RFT's workflow of the same name, with the tables of their database.
`email_database` has the queries.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec

from rftd.ops.errors import RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.email_database import EmailInbox
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.trajectory import Trajectory

if TYPE_CHECKING:
    from rftd.workers.generation.model import Model
    from rftd.workers.workflows.rewards.scorer import Scorer

_CALL: Final = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_NO_ANSWER: Final = "I don't know"
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

Turns = Annotated[int, msgspec.Meta(ge=1, le=100)]
Results = Annotated[int, msgspec.Meta(ge=1, le=100)]


class EmailSearchWorkflow:
    """Searches and reads the row's inbox until the final answer, which the reward scores; no answer earns 0."""

    default_reward: ClassVar[str | None] = "llm_judge_reward"

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
        search = _Search(EmailInbox(self._path, address, self._max_results), task)
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


class _Search:
    """The calls of one rollout, and what they met."""

    def __init__(self, inbox: EmailInbox, task: Task) -> None:
        self._inbox = inbox
        sources = task.raw.get("message_ids") or ()
        self._right = {str(source) for source in sources} if isinstance(sources, list | tuple) else {str(sources)}
        self.answer: str | None = None
        self.metrics = {"bad_calls": 0.0, "found_right_email": 0.0, "read_right_email": 0.0, "sources_right": 0.0}

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
        if name == "search_emails":
            rows = await asyncio.to_thread(self._inbox.search, **arguments)
            self._note("found_right_email", any(row["message_id"] in self._right for row in rows))
            return json.dumps(rows, ensure_ascii=False)
        if name == "read_email":
            email = await asyncio.to_thread(self._inbox.read, str(arguments["message_id"]))
            self._note("read_right_email", email["message_id"] in self._right)
            return json.dumps(email, ensure_ascii=False)
        if name == "return_final_answer":
            self.answer = str(arguments["answer"]).strip()
            sources = arguments.get("sources")
            named = {str(source) for source in sources} if isinstance(sources, list) else set()
            self._note("sources_right", bool(named & self._right))
            return "done"
        raise ValueError(f"there is no tool {name!r}")

    def _note(self, metric: str, right: bool) -> None:
        self.metrics[metric] = max(self.metrics[metric], float(right))
