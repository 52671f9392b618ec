"""Workers' log files: merged by time, followed, and without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.house import House

from rftd.daemon.views.logs import TAIL_SIZE_BYTES, mask, since, tail


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
    assert [line.event for line in tail(tmp_path, lines=9, role="trainer").items] == ["b", "c"]


def test_following_gives_each_line_once_and_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    write(log, record(1, "a"))
    places = tail(tmp_path, lines=10).next
    with log.open("a") as file:
        file.write(json.dumps(record(2, "half"))[:20])
    page = since(tmp_path, places)
    assert page.items == []
    assert page.next == places
    with log.open("a") as file:
        file.write(json.dumps(record(2, "half"))[20:] + "\n")
    write(tmp_path / "explorer_3.log", record(1, "new file"))
    page = since(tmp_path, places)
    assert [line.event for line in page.items] == ["new file", "half"]
    assert since(tmp_path, page.next).items == []


def test_a_large_file_is_read_from_near_its_end(tmp_path: Path) -> None:
    write(tmp_path / "trainer.log", "x" * (TAIL_SIZE_BYTES + 10), record(1, "last"))
    assert [line.event for line in tail(tmp_path, lines=10).items] == ["last"]


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
        assert mask(text) == text


@pytest.mark.anyio
async def test_over_http(house: House, client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/experiments/small/logs")).json() == {"items": [], "next": {}}
    write(house.job_dir / "log" / "trainer.log", record(1, "a", hf_token="hf_abcdefgh"))
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
    assert since(tmp_path, page.next).items == []
    assert [line.role for line in tail(tmp_path, lines=10, role="explorer").items] == ["explorer"]
