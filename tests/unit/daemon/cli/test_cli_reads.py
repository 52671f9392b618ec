"""Reading verbs against a real daemon: tables for people, data for programs."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from pathlib import Path

import pytest
import yaml
from synthetic.daemon.command_line import Rftd, Served

from rftd.daemon.cli.verbs import steps


def test_ls_and_get(rftd: Rftd) -> None:
    listed = rftd("ls", "--state", "completed")
    assert listed.status == 0
    assert "small" in listed.out
    assert "5/5" in listed.out
    assert listed.err == ""
    assert rftd("ls", "--state", "failed").out == ""
    page = rftd("get", "small")
    assert page.status == 0
    for word in ("completed", "warmup (sft) 2/2 steps, done", "produced =", "(stale 1)", "held_out", "killed"):
        assert word in page.out, page.out
    assert "\x1b" not in page.out, "no colour without a terminal"


def test_machine_readable_output_is_data_only(rftd: Rftd) -> None:
    for flags in (("--json",), ("-o", "json")):
        assert json.loads(rftd("ls", *flags).out)["items"][0]["name"] == "small"
        assert json.loads(rftd(*flags, "get", "small").out)["experiment"]["summary"]["step"] == 5
    assert yaml.safe_load(rftd("get", "small", "-o", "yaml").out)["experiment"]["books"]["balance"] == 0
    lines = rftd("ls", "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["small"]


def test_schemas_stay(rftd: Rftd) -> None:
    """Programs read these; a field that goes or changes its name breaks them."""
    summary = json.loads(rftd("ls", "--json").out)["items"][0]
    assert sorted(summary) == [
        *("clipped", "code", "explorer_idle", "forked_step", "generation", "held_out", "id", "kept", "kept_path"),
        *("labels", "left_s", "name"),
        *("parent", "priority", "project", "queue_position", "reason", "reward_curve", "reward_mean", "signal"),
        *("stage", "staleness_p95", "starred", "started_at", "state", "state_at", "step", "submitted_at"),
        *("total_steps", "trainer_idle"),
    ]
    page = json.loads(rftd("get", "small", "--json").out)
    assert sorted(page) == [
        *("budgets", "checkpoints", "evals", "experiment", "memory", "moment", "overdue"),
        *("overdue_windows", "pace"),
        *("queues", "resolved", "reward_curve", "signal", "trackers", "waiting", "weights", "why", "workers"),
    ]
    assert page["resolved"]["name"] == "small"
    assert page["resolved"]["stages"][1]["buffer"]["batch_size"] > 0
    assert page["resolved"]["derived"]["checkpoint_job_dir"] == page["experiment"]["job_dir"]
    assert sorted(page["experiment"]["books"]) == [
        *("balance", "cooling", "failed_rollouts", "given_up", "late", "open", "planned", "produced", "retired"),
        *("retired_used", "waiting"),
    ]
    event = json.loads(rftd("events", "small", "-n", "1", "--json").out)["items"][0]
    assert sorted(event) == [
        *("causation", "correlation", "epoch", "id", "payload", "position", "role", "source", "time", "type"),
        "version",
    ]
    assert sorted(json.loads(rftd("version", "--json").out)) == ["client", "daemon", "reason", "server"]


def test_the_course_of_a_run_is_drawn_in_a_few_lines_of_means(rftd: Rftd) -> None:
    steps = json.loads(rftd("steps", "small", "-n", "1000", "--json").out)["items"]
    shown = rftd("steps", "small", "--points", "2")
    assert shown.status == 0, shown
    header, *lines = shown.out.splitlines()
    assert header.split()[0] == "STEP"
    assert "LOSS" in header
    assert [line.split()[0] for line in lines][-1] == str(steps[-1]["step"])
    assert len(lines) == 2
    course = json.loads(rftd("steps", "small", "--points", "2", "--metric", "loss", "--json").out)
    [line] = course["lines"]
    half = [step["metrics"]["loss"] for step in steps if step["step"] <= course["at"][0]]
    assert line["mean"][0] == pytest.approx(sum(half) / len(half))
    table = rftd("steps", "small", "--points", "2", "--metric", "loss", "-o", "csv").out.splitlines()
    assert table[0] == "step,loss"
    assert len(table) == 3
    assert rftd("steps", "small", "--points", "2", "--names").status == 2
    assert "is not a figure" in rftd("steps", "small", "--points", "2", "--metric", "lost").err


def test_a_table_of_steps_asks_for_the_figures_that_it_shows(rftd: Rftd, monkeypatch: pytest.MonkeyPatch) -> None:
    from rftd.daemon.http.client.connection import DaemonConnection

    asked: list[object] = []
    ask = DaemonConnection.ask

    def noting(self: DaemonConnection, read: object, **parameters: object) -> object:
        asked.append(parameters.get("metrics"))
        return ask(self, read, **parameters)

    monkeypatch.setattr(DaemonConnection, "ask", noting)
    assert "LOSS" in rftd("steps", "small").out
    assert asked[-1] and "loss" in asked[-1]
    assert rftd("steps", "small", "--metric", "loss").status == 0
    assert asked[-1] == ["loss"]
    unknown = rftd("steps", "small", "--metric", "los")
    assert "did you mean" in unknown.err, unknown


def test_events_in_pages_and_by_type(rftd: Rftd) -> None:
    first = rftd("events", "small", "--all", "-n", "5", "--json")
    page = json.loads(first.out)
    rest = json.loads(rftd("events", "small", "--cursor", page["next"], "--json").out)
    assert page["more"]
    assert not rest["more"]
    ids = [event["id"] for event in page["items"] + rest["items"]]
    assert len(ids) == len(set(ids)) > 100
    text = rftd("events", "small", "--type", "experiment")
    assert [line.split()[1] for line in text.out.splitlines()] == [
        *("experiment.submitted", "experiment.accepted", "experiment.started", "experiment.completed"),
    ]
    assert "next page: rftd events small --cursor" in rftd("events", "small", "--all", "-n", "2").err
    newest = json.loads(rftd("events", "small", "-n", "2", "--json").out)
    assert [event["id"] for event in newest["items"]] == ids[-2:]
    assert not newest["more"]
    assert rftd("events", "small", "-n", "2").err == ""
    assert rftd("events", "small", "--all", "--cursor", page["next"]).status == 2
    assert rftd("events", "small", "-n", "20000").status == 2
    assert rftd("events", "small", "--type", "nonsense").status == 2


def test_experiences_by_filter_and_one_of_them(rftd: Rftd) -> None:
    good = json.loads(rftd("experiences", "ls", "small", "--reward", ">0.5", "--step", "3:", "--json").out)["items"]
    assert good
    assert all(row["reward"] > 0.5 and row["step"] >= 3 for row in good)
    assert json.loads(rftd("experiences", "ls", "small", "--reward", ">1", "--json").out)["items"] == []
    assert "retired (stale)" in rftd("experiences", "ls", "small", "--state", "retired").out
    shown = rftd("experiences", "show", "small", good[0]["id"], "--tokens")
    assert "drawn by      version" in shown.out
    assert "reward parts  accuracy " in shown.out
    assert "  -1.0000  processed   -0.5000" in shown.out
    assert "sampling      temperature 1, top_p 0.95, top_k -1, min_p 0.1: response tokens 0 to" in shown.out
    id = good[0]["id"]
    assert rftd("experiences", "show", "small", id[:8], "--tokens").out == shown.out
    assert rftd("experiences", "ls", "small", "-n", "1000").out.count(f"{id[:8]}  ") == 1
    assert rftd("experiences", "show", "small", id[:7]).status == 2
    assert rftd("experiences", "show", "small", "0" * 8).status == 3
    assert "note          no text, only ids: model folder '/model' does not exist" in shown.out
    assert "answer ids" not in shown.out, "they are in the table of tokens"
    assert re.search(r"^prompt ids    \d+ .*\nanswer ids    \d+", rftd("experiences", "show", "small", id).out, re.M)
    told = json.loads(rftd("experiences", "show", "small", id, "--json").out)
    assert told["tokens"] is None
    assert told["task"]["epoch"] == 0
    assert told["text"]["rollout"]["turns"] == []
    assert len(told["text"]["rollout"]["ids"][0]["answer"]) == good[0]["response_tokens"]
    for wrong in (("--step", "x"), ("--reward", "much"), ("--staleness", ">>1")):
        refused = rftd("experiences", "ls", "small", *wrong)
        assert refused.status == 2
        assert wrong[0] in refused.err


def test_lengths_of_experiences_and_a_verdict(rftd: Rftd) -> None:
    shown = rftd("experiences", "lengths", "small").out.splitlines()
    assert [line.split()[:2] for line in shown[1:4]] == [["generated", "26"], ["trained", "24"], ["dropped", "2"]]
    assert shown[4:6] == ["dropped: late 1, stale 1", "not decided yet: 2"]
    assert shown[6].startswith("drop bias: KS ")
    assert shown[6].endswith("dropped responses are as long as the rest")
    assert json.loads(rftd("experiences", "lengths", "small", "--json").out)["trained"]["count"] == 24
    assert rftd("experiences", "lengths", "small", "--stage", "0").out.endswith("nothing was trained yet\n")


def test_watch_of_an_ended_experiment_ends(rftd: Rftd) -> None:
    said = rftd("watch", "small")
    assert said.status == 0
    assert "step 5/5" in said.out
    pages = [json.loads(line) for line in rftd("watch", "small", "--json").out.splitlines()]
    assert [page["experiment"]["summary"]["state"] for page in pages] == ["completed"]


def test_logs(rftd: Rftd, served: Served) -> None:
    folder = served.parts.job_dir / "log"
    folder.mkdir(parents=True, exist_ok=True)
    line = {"time": "2026-01-01T00:00:01Z", "level": "info", "event": "step", "step": 3, "api_key": "sk-1234567"}
    (folder / "trainer.log").write_text(json.dumps(line) + "\n")
    said = rftd("logs", "small")
    assert "trainer" in said.out
    assert "step=3" in said.out
    assert "sk-1234567" not in said.out
    assert rftd("logs", "small", "--since", "10m").out == ""
    assert rftd("logs", "small", "--role", "trainer", "--level", "info", "--grep", "step=3").out == said.out
    assert rftd("logs", "small", "--since", "99999999999h").out == said.out
    assert rftd("logs", "small", "--role", "nobody").status == 2
    assert rftd("logs", "small", "--level", "error").out == rftd("logs", "small", "--grep", "nothing").out == ""
    assert json.loads(rftd("logs", "small", "--json").out)["items"][0]["fields"]["api_key"] == "***"


def test_logs_of_the_daemon(rftd: Rftd, served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = [
        {"time": "2026-01-01T00:00:01Z", "level": "info", "event": "worker.process", "role": "explorer", "pid": 7},
        {"time": "2026-01-01T00:00:02Z", "level": "error", "event": "part.failed", "role": "daemon", "why": "a\nb\x1b"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (served.parts.job_dir.parent / "daemon.log").write_text(text)
    whole = rftd("logs", "--daemon")
    assert [line.split()[3] for line in whole.out.splitlines()] == ["worker.process", "part.failed"]
    assert "\x1b" not in whole.out
    assert rftd("logs", "--daemon", "--role", "explorer").out == whole.out.splitlines(keepends=True)[0]
    assert rftd("logs", "--daemon", "--level", "error", "-n", "1").out == whole.out.splitlines(keepends=True)[1]
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    assert rftd("logs", "--daemon", "--local").out.startswith("2026-01-01T05:30:01.000+05:30  daemon ")
    assert rftd("logs", "--daemon", "small").status == rftd("logs").status == 2
    # Without a daemon they come from its folder, with the same options.
    as_json = rftd("logs", "--daemon", "--level", "error", "--json").out
    monkeypatch.delenv("RFTD_SERVER")
    (tmp_path / ".rftd").mkdir()
    (tmp_path / ".rftd" / "daemon.log").write_text(text)
    (tmp_path / ".rftd" / "endpoint.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    alone = rftd("logs", "--daemon")
    assert alone.out == whole.out
    assert "the lines are those of" in alone.err
    assert rftd("logs", "--daemon", "--level", "error", "--json").out == as_json
    assert rftd("logs", "--daemon", "--server", "http://127.0.0.1:1").status == 4
    (tmp_path / ".rftd" / "daemon.log").unlink()
    assert rftd("logs", "--daemon").status == 4
    monkeypatch.undo()
    time.tzset()


def test_steps_show_a_reward_or_a_loss(rftd: Rftd) -> None:
    said = rftd("steps", "small")
    assert (said.status, said.err) == (0, "")
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[0] == ["STEP", "REWARD", "LOSS", "STALE", "TOKENS", "TOK/S", "S/STEP"]
    assert lines[1] == ["1", "-", "1", "-", "28", "112", "0.25"]
    assert lines[3] == ["3", "0.75", "0.333", "0", "56", "224", "0.25"]
    assert [line[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert [line.split()[0] for line in rftd("steps", "small", "-n", "2").out.splitlines()] == ["STEP", "4", "5"]
    assert [line.split()[0] for line in rftd("steps", "small", "--step", "2:3").out.splitlines()] == ["STEP", "2", "3"]


def test_steps_are_fetched_page_by_page(rftd: Rftd, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(rftd("steps", "small", "--json").out)["items"]
    monkeypatch.setattr(steps, "PAGE", 2)
    assert json.loads(rftd("steps", "small", "--json").out)["items"] == whole
    assert [each["step"] for each in whole] == [1, 2, 3, 4, 5]
    assert [each["step"] for each in json.loads(rftd("steps", "small", "-n", "4", "--json").out)["items"]] == [
        2,
        3,
        4,
        5,
    ]


def test_figures_of_steps_by_name(rftd: Rftd) -> None:
    listed = rftd("steps", "small", "--names").out
    assert [line.split()[0] for line in listed.splitlines()] == [
        *("FIGURE", "reward_mean", "staleness_mean", "staleness_p95", "staleness_max"),
        *("items", "tokens", "duration_s", "tokens_per_s", "bad", "loss"),
    ]
    chosen = rftd("steps", "small", "--metric", "loss", "--metric", "tokens_per_s", "--step", "3:")
    assert [line.split() for line in chosen.out.splitlines()] == [
        *(["STEP", "loss", "tokens_per_s"], ["3", "0.333333", "224"], ["4", "0.25", "224"], ["5", "0.2", "224"]),
    ]
    item = json.loads(rftd("steps", "small", "--metric", "loss", "-n", "1", "--json").out)["items"][0]
    assert (item["step"], item["stage"], item["metrics"]) == (5, 1, {"loss": 0.2})
    assert set(item) == {"step", "generation", "stage", "completed_at", "inherited", "metrics"}


def test_steps_as_csv(rftd: Rftd) -> None:
    rows = list(csv.DictReader(io.StringIO(rftd("steps", "small", "-o", "csv").out)))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert (rows[0]["reward_mean"], rows[0]["loss"], rows[0]["inherited"]) == ("", "1.0", "false")
    assert float(rows[2]["loss"]) == 1 / 3, "a figure loses nothing"
    assert rows[2]["bad"] == ""
    assert rows[2]["completed_at"].endswith("Z")
    chosen = rftd("steps", "small", "-o", "csv", "--metric", "loss", "--metric", "items").out.splitlines()
    assert chosen[:2] == ["step,loss,items", "1,1.0,4"]


def test_steps_that_are_not_there(rftd: Rftd) -> None:
    wrong = rftd("steps", "small", "--metric", "los")
    assert wrong.status == 2
    assert "'los' is not a figure of any of the steps 1 to 5" in wrong.err
    assert "did you mean loss?" in wrong.err
    assert "stalenes_mean" in rftd("steps", "small", "--metric", "stalenes_mean").err
    assert "did you mean staleness_mean" in rftd("steps", "small", "--metric", "stalenes_mean").err
    assert rftd("steps", "small", "--metric", "").status == 2
    beyond = rftd("steps", "small", "--step", "7:")
    assert (beyond.status, beyond.out) == (0, "")
    assert beyond.err == "no step of --step 7: was trained; the newest is step 5\n"
    assert rftd("steps", "small", "--step", "7:", "-o", "csv", "-q").out.startswith("step,generation,stage")
    assert json.loads(rftd("steps", "small", "--step", "7:", "--json").out) == {"items": []}
    assert rftd("steps", "small", "--step", "all").status == 2
    assert rftd("steps", "other").status == 3
    assert rftd("ls", "-o", "csv").status == 2, "only steps are a table of numbers"
