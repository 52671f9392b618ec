"""Workers' log files: merged by time, followed, and without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.daemon_parts import DaemonParts

from rftd.daemon.http.views.logs import TAIL_SIZE_BYTES, LogFilter, following, of_daemon, tail, text_of
from rftd.ops.redaction import mask_text


def write(path: Path, *lines: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def record(second: int, event: str, **fields: object) -> dict[str, object]:
    return {"time": f"2026-01-01T00:00:{second:02}Z", "level": "info", "event": event, **fields}


def test_files_are_merged_by_time_and_a_traceback_stays_with_its_line(tmp_path: Path) -> None:
    write(tmp_path / "explorer_0.log", record(1, "a"), record(5, "broke"), "Traceback (most recent call last):", "  x")
    write(tmp_path / "trainer.log", record(3, "b", step=2), record(7, "c"))
    page = tail(tmp_path, lines=100)
    assert [line.event for line in page.items] == ["a", "b", "broke", "Traceback (most recent call last):", "  x", "c"]
    assert [(line.role, line.slot) for line in page.items[:2]] == [("explorer", 0), ("trainer", None)]
    assert page.items[1].fields == {"step": 2}
    assert [line.event for line in tail(tmp_path, lines=1).items] == ["c"]
    assert [line.event for line in tail(tmp_path, lines=9, conditions=LogFilter(role="trainer")).items] == ["b", "c"]


def test_following_gives_each_line_once_and_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    write(log, record(1, "a"))
    places = tail(tmp_path, lines=10).next
    with log.open("a") as file:
        file.write(json.dumps(record(2, "half"))[:20])
    page = following(tmp_path, places)
    assert page.items == []
    assert page.next == places
    with log.open("a") as file:
        file.write(json.dumps(record(2, "half"))[20:] + "\n")
    write(tmp_path / "explorer_3.log", record(1, "new file"))
    page = following(tmp_path, places)
    assert [line.event for line in page.items] == ["new file", "half"]
    assert following(tmp_path, page.next).items == []


def test_a_large_file_is_read_from_near_its_end(tmp_path: Path) -> None:
    write(tmp_path / "trainer.log", "x" * (TAIL_SIZE_BYTES + 10), record(1, "last"))
    assert [line.event for line in tail(tmp_path, lines=10).items] == ["last"]


def test_the_first_line_of_a_tail_belongs_to_the_line_that_was_cut(tmp_path: Path) -> None:
    filling = ["x" * 1023 for _ in range(TAIL_SIZE_BYTES // 1024 - 1)]
    write(tmp_path / "trainer.log", {**record(1, "broke"), "level": "error", "reason": "r" * 2000}, *filling)
    found = tail(tmp_path, lines=10, conditions=LogFilter(level="error")).items
    assert [line.event[:1] for line in found] == ["x"] * 10


def test_links_and_missing_folders_hold_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root:x\n")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "trainer.log").symlink_to(secret)
    assert tail(tmp_path / "log", lines=10).items == []
    assert tail(tmp_path / "none", lines=10).items == []


def test_secrets_are_masked_wherever_they_stand(tmp_path: Path) -> None:
    write(
        tmp_path / "explorer_0.log",
        record(1, "call", api_key="sk-12345678", url="https://me:hunter22@host/x", nested={"password": "hunter22"}),
        record(2, "header Authorization: Bearer abcdefgh12345678"),
        "openai.error: api_key=sk-12345678 was refused",
        "postgresql://me:hunter22@db/rftd",
        record(3, "fine", tokens=12, token_count="12"),
    )
    text = repr(tail(tmp_path, lines=10).items)
    assert "sk-12345678" not in text
    assert "hunter22" not in text
    assert "abcdefgh12345678" not in text
    assert text.count("***") >= 6
    assert "'tokens': 12" in text


def test_masking_leaves_ordinary_words() -> None:
    for text in ("tokens=128", "the token was late", "max_tokens: 4", "https://host/path?x=1"):
        assert mask_text(text) == text


@pytest.mark.anyio
async def test_over_http(parts: DaemonParts, client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/experiments/small/logs")).json() == {"items": [], "next": {}}
    write(parts.job_dir / "log" / "trainer.log", record(1, "a", hf_token="hf_abcdefgh"))
    page = (await client.get("/v1/experiments/small/logs", params={"n": 5})).json()
    assert page["items"][0]["fields"] == {"hf_token": "***"}
    after = await client.get("/v1/experiments/small/logs", params={"after": json.dumps(page["next"])})
    assert after.json()["items"] == []


def test_files_in_folders_of_nodes_are_read_too(tmp_path: Path) -> None:
    for name in ("trainer.log", "10.0.0.7/explorer_1.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"time": "2026-01-01T00:00:00.000Z", "level": "info", "event": "x"}\n')
    (tmp_path / "elsewhere").symlink_to(tmp_path / "10.0.0.7")
    page = tail(tmp_path, lines=10)
    assert {(line.file, line.role, line.slot) for line in page.items} == {
        ("trainer.log", "trainer", None),
        ("10.0.0.7/explorer_1.log", "explorer", 1),
    }
    assert following(tmp_path, page.next).items == []
    assert [line.role for line in tail(tmp_path, lines=10, conditions=LogFilter(role="explorer")).items] == ["explorer"]


def test_lines_are_chosen_before_the_tail_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    write(log, {**record(1, "broke"), "level": "error"}, "Traceback (most recent call last):", "ValueError: x")
    write(log, *(record(2, "step.completed", step=number) for number in range(200)), "a library says")
    errors = tail(tmp_path, lines=2, conditions=LogFilter(level="warning"))
    assert [line.event for line in errors.items] == ["Traceback (most recent call last):", "ValueError: x"]
    assert {line.level for line in errors.items} == {"error"}, "they belong to the line before them"
    found = tail(tmp_path, lines=5, conditions=LogFilter(pattern="step=17"))
    assert [line.fields["step"] for line in found.items] == [17, *range(170, 180)][-5:]
    first = tail(tmp_path, lines=1, conditions=LogFilter(pattern="broke"))
    assert [line.event for line in first.items] == ["broke"]
    since_ns = 1_767_225_602_000_000_000  # the second second
    write(tmp_path / "explorer_0.log", {"time": "2026-01-01T00:00:09", "event": "a time without a zone"}, {"time": "x"})
    late = tail(tmp_path, lines=1000, conditions=LogFilter(since_ns=since_ns))
    assert len(late.items) == 201
    assert late.items[-1].event == "a library says"


@pytest.mark.parametrize(
    "claimed", ["2199-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "z", 7, None, "1970-01-01T00:00:00Z"]
)
def test_a_line_that_a_workflow_prints_takes_no_place_but_its_own(tmp_path: Path, claimed: object) -> None:
    """A model's answer, printed as it is, may be such a line: it stood last for ever, or hid what came after it."""
    forged = {"time": claimed, "level": "error", "event": "forged"}
    write(tmp_path / "explorer_0.log", record(1, "a"), forged, "text", record(5, "b"), "more")
    write(tmp_path / "trainer.log", record(3, "step"), record(7, "end"))
    in_order = ["a", "forged", "text", "step", "b", "more", "end"]
    assert [line.event for line in tail(tmp_path, lines=9).items] == in_order
    since = LogFilter(since_ns=1_767_225_601_000_000_000)  # the first second
    assert [line.event for line in tail(tmp_path, lines=9, conditions=since).items] == in_order
    found = next(line for line in tail(tmp_path, lines=9).items if line.event == "forged")
    assert found.time == (claimed if claimed == "1970-01-01T00:00:00Z" else "2026-01-01T00:00:01Z")
    assert found.fields.get("time", found.time) == claimed, "what it claims is shown"


def test_lines_stay_in_order_when_the_clock_was_set_back(tmp_path: Path) -> None:
    write(tmp_path / "trainer.log", record(40, "before"), record(10, "after"), "Traceback")
    write(tmp_path / "explorer_0.log", record(20, "other"))
    assert [line.event for line in tail(tmp_path, lines=9).items] == ["other", "before", "after", "Traceback"]


def test_a_trace_s_lines_are_found_with_the_traceback_that_follows_them(tmp_path: Path) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    write(
        tmp_path / "explorer_0.log",
        record(1, "before"),
        record(2, "broke", trace_id=trace),
        "Traceback",
        record(3, "after"),
    )
    write(tmp_path / "trainer.log", record(4, "weights", trace_id=trace), record(5, "other", trace_id="f" * 32))
    found = tail(tmp_path, lines=10, conditions=LogFilter(trace_id=trace)).items
    assert [line.event for line in found] == ["broke", "Traceback", "weights"]
    assert tail(tmp_path, lines=10, conditions=LogFilter(trace_id="0" * 32)).items == []


def test_what_follows_a_page_belongs_to_the_last_line_of_that_page(tmp_path: Path) -> None:
    log = tmp_path / "explorer_0.log"
    write(log, record(1, "fine"))
    quiet = following(tmp_path, {}, conditions=LogFilter(level="error"))
    write(log, "a library says")
    assert following(tmp_path, quiet.next, conditions=LogFilter(level="error")).items == []
    write(log, {**record(2, "broke"), "level": "error"})
    broke = following(tmp_path, quiet.next, conditions=LogFilter(level="error"))
    write(log, "Traceback (most recent call last):")
    rest = following(tmp_path, broke.next, conditions=LogFilter(level="error")).items
    assert [(line.event, line.level, line.time) for line in rest] == [
        ("Traceback (most recent call last):", "error", "2026-01-01T00:00:02Z")
    ]


def test_a_line_stays_one_line_and_commands_no_terminal(tmp_path: Path) -> None:
    hostile = "x\n2026-01-01T00:00:09Z  trainer  error  forged\x1b]0;owned\x07\u202e"
    write(tmp_path / "explorer_0.log", record(1, "rollout.failed", reason=hostile, **{"a\x1bb": {"c": hostile}}))
    write(tmp_path / "explorer_0.log", "progress\x1b[2J 10%\tdone")
    lines = [text_of(line) for line in tail(tmp_path, lines=9).items]
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines), lines
    assert "reason=x\\n2026" in lines[0]
    assert lines[1].endswith("progress\\x1b[2J 10%  done")


@pytest.mark.anyio
async def test_wrong_filters_are_named(client: httpx.AsyncClient) -> None:
    for field, value in (
        ("role", "nobody"),
        ("level", "loud"),
        ("since", "yesterday"),
        ("since", "2026-01-01T00:00:00"),
    ):
        answer = await client.get("/v1/experiments/small/logs", params={field: value})
        assert answer.status_code == 422
        assert field in answer.text


def test_the_daemons_file_goes_on_in_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "daemon.log"
    write(tmp_path / "daemon.log.1", record(1, "old"), record(2, "late", role="trainer"))
    write(file, record(3, "new", slot=1, name="n", experiment="e", step=4))
    page = of_daemon(file, lines=2)
    assert [(line.event, line.role) for line in page.items] == [("late", "daemon"), ("new", "daemon")]
    assert [line.event for line in of_daemon(file, lines=9, conditions=LogFilter(role="trainer")).items] == ["late"]
    write(file, record(4, "more"))
    after = of_daemon(file, lines=9, after=json.dumps(page.next))
    assert [line.event for line in after.items] == ["more"]
    file.replace(tmp_path / "daemon.log.1")
    write(file, record(5, "next file"))
    again = of_daemon(file, lines=9, after=json.dumps(after.next))
    assert [line.event for line in again.items] == ["next file"]
    assert text_of(page.items[1]).endswith("new  slot=1 experiment=e name=n step=4"), "in one order"


def test_a_file_that_began_anew_is_told_with_the_older_one(tmp_path: Path) -> None:
    write(tmp_path / "trainer.log.1", record(1, "a"), {**record(5, "broke"), "level": "error"})
    write(tmp_path / "trainer.log", "Traceback", record(7, "c"))
    write(tmp_path / "explorer_0.log", record(3, "b"))
    page = tail(tmp_path, lines=9)
    assert [line.event for line in page.items] == ["a", "b", "broke", "Traceback", "c"]
    assert {line.role for line in page.items} == {"trainer", "explorer"}
    assert page.items[3].level == "error"
    assert set(page.next) == {"trainer.log", "explorer_0.log"}
    assert following(tmp_path, page.next).items == []
