"""Email search over a real database: calls see one inbox alone, and the final answer is scored."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from synthetic.models.scripted_engine import SPEC, ScriptedEngine

from rftd.ops.errors import RolloutError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import SamplingSpec, TasksetSpec
from rftd.workers.datasets.byte_tokenizer import ByteTokenizer
from rftd.workers.datasets.task import make_task
from rftd.workers.workflows.email_search import EmailInbox
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.runner import WorkflowRunner

TABLES = """
CREATE TABLE emails (id INTEGER PRIMARY KEY, message_id TEXT UNIQUE, subject TEXT, from_address TEXT, date TEXT,
    body TEXT);
CREATE TABLE recipients (email_id INTEGER, recipient_address TEXT, recipient_type TEXT);
CREATE VIRTUAL TABLE emails_fts USING fts5(subject, body, content='emails', content_rowid='id');
"""
EMAILS = (
    ("m1", "Lunch", "bob@x", "2001-05-01 10:00:00", "Lunch is at noon on Friday", ["ann@x"]),
    ("m2", "Lunch moved", "bob@x", "2001-05-03 10:00:00", "Lunch is at one on Friday", ["ann@x", "cy@x"]),
    ("m3", "Lunch", "cy@x", "2001-05-04 10:00:00", "Lunch of others", ["dan@x"]),
    ("m4", "Report", "ann@x", "2001-05-05 10:00:00", "The report OR the lunch", ["bob@x"]),
)


@pytest.fixture
def emails(tmp_path: Path) -> Path:
    path = tmp_path / "emails.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TABLES)
        for number, (name, subject, sender, date, body, recipients) in enumerate(EMAILS, start=1):
            connection.execute(
                "INSERT INTO emails VALUES (?, ?, ?, ?, ?, ?)", (number, name, subject, sender, date, body)
            )
            rows = [(number, recipient, "to") for recipient in recipients]
            connection.executemany("INSERT INTO recipients VALUES (?, ?, ?)", rows)
        connection.execute("INSERT INTO emails_fts (emails_fts) VALUES ('rebuild')")
        connection.commit()
    return path


def call(name: str, **arguments: Any) -> str:
    return f"I look.\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def searched(
    emails: Path, replies: tuple[str, ...], *, max_turns: int = 6, **row: Any
) -> tuple[RolloutResult, list[str]]:
    """The rollout, and the prompts of its requests."""
    spec = TasksetSpec(
        name="mails",
        path="a.jsonl",
        format=Format(prompt_key="question", response_key="answer"),
        workflow="email_search_workflow",
        workflow_args={"path": str(emails), "max_turns": max_turns},
        reward="accuracy_reward",
        sampling=SamplingSpec(max_tokens=200),
    )
    engine = ScriptedEngine(replies=replies)
    model = type(SPEC)(path="m", max_model_len=16384, max_prompt_tokens=15000, max_response_tokens=500)
    runner = WorkflowRunner(spec, model=model, engine=engine, tokenizer=ByteTokenizer())
    columns = {"question": "When is lunch?", "answer": "1", "inbox_address": "ann@x", "message_ids": ["m2"], **row}
    result = await runner.run(make_task(columns, spec=spec, row=4), UUID(int=1))
    return result, [bytes(token for token in request.prompt if token < 256).decode() for request in engine.requests]


@pytest.mark.anyio
async def test_a_search_reads_answers_and_is_scored_by_its_answer(emails: Path) -> None:
    result, prompts = await searched(
        emails,
        (
            call("search_emails", keywords=["lunch", "friday"]),
            call("read_email", message_id="m2"),
            call("return_final_answer", answer="<answer>1</answer>", sources=["m2"]),
        ),
        query_date="2001-06-01",
    )
    assert (result.reward, result.metrics["accuracy"], result.turns) == (1.0, 1.0, 3)
    right = ("found_right_email", "read_right_email", "sources_right")
    assert {name: result.metrics[name] for name in (*right, "bad_calls", "turns")} == {
        **dict.fromkeys(right, 1.0),
        "bad_calls": 0.0,
        "turns": 3.0,
    }
    assert "emails of ann@x. Today is 2001-06-01" in prompts[0]
    assert prompts[1].index('"m2"') < prompts[1].index('"m1"'), "the newest first"
    assert "Lunch is at one on Friday" in prompts[2]
    assert '"to": ["ann@x", "cy@x"]' in prompts[2]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("replies", "turns", "bad"),
    [
        (("I do not search",), 6, 6),
        ((call("return_final_answer", answer="I don't know"),), 1, 0),
        ((call("send_email", to="bob@x"), call("return_final_answer", answer="")), 2, 1),
        ((call("search_emails"), call("read_email"), "<tool_call>[1]</tool_call>"), 6, 6),
        ((call("search_emails", keywords=["lunch"], limit=5),), 6, 6),
        ((call("search_emails", keywords=["lunch"], sent_after="May"),), 6, 6),
        ((call("read_email", message_id="m3"),), 6, 6),
    ],
)
async def test_no_answer_and_wrong_calls_earn_nothing(
    emails: Path, replies: tuple[str, ...], turns: int, bad: int
) -> None:
    result, prompts = await searched(emails, replies)
    assert (result.reward, len(prompts), result.metrics["bad_calls"]) == (0.0, turns, bad)


def test_an_inbox_has_its_own_emails_alone_and_words_are_no_operators(emails: Path) -> None:
    inbox = EmailInbox(emails, "ann@x", 10)
    found = [row["message_id"] for row in inbox.search(["lunch"])]
    assert found == ["m4", "m2", "m1"]
    assert [row["message_id"] for row in inbox.search("report OR lunch")] == ["m4"]
    assert inbox.search(['" OR lunch']) == []
    assert [row["message_id"] for row in inbox.search("lunch", from_addr="bob@x", sent_before="2001-05-02")] == ["m1"]
    assert [row["message_id"] for row in inbox.search("lunch", to_addr="cy@x", sent_after="2001-05-02")] == ["m2"]
    assert EmailInbox(emails, "ann@x", 1).search("lunch")[0]["message_id"] == "m4"


@pytest.mark.anyio
async def test_no_database_and_no_inbox_fail_the_rollout_by_name(emails: Path, tmp_path: Path) -> None:
    search = (call("search_emails", keywords=["lunch"]),)
    with pytest.raises(RolloutError, match=r"(?s)cannot read the emails.*none\.db"):
        await searched(tmp_path / "none.db", search)
    with pytest.raises(RolloutError, match=r"(?s)no inbox_address.*row 4"):
        await searched(emails, search, inbox_address="")
