"""Commanding verbs against a real daemon: submissions, transitions, and what they exit with."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from uuid import uuid5

import pytest
from synthetic.daemon import experiment_files
from synthetic.daemon.command_line import Rftd, Served

from rftd.ops.ids import NAMESPACE


def submitted(rftd: Rftd, file: Path, name: str, *more: str) -> dict:
    said = rftd("submit", str(file), "-s", f"name={name}", "--json", *more)
    assert said.status == 0, said.err
    return json.loads(said.out)


def test_submit_tells_what_to_do_next(rftd: Rftd, experiment_file: Path) -> None:
    said = rftd("submit", str(experiment_file), "--label", "team=a")
    assert said.status == 0
    first, stages, next_ = said.out.splitlines()
    assert first.startswith("accepted ")
    assert "name=mine" in first
    assert "event=" in first
    assert "grpo, 5 steps" in stages
    assert "watch: rftd watch mine" in next_
    page = json.loads(rftd("get", "mine", "--json").out)
    assert page["experiment"]["summary"]["labels"] == {"team": "a"}
    again = rftd("submit", str(experiment_file))
    assert "rftd watch mine " not in again.out, "a second one of this name is called by its id"
    ambiguous = rftd("get", "mine")
    assert ambiguous.status == 2
    assert "mine@1" in ambiguous.err
    assert rftd("get", "mine@2").status == 0


def test_what_to_do_next_can_be_typed_whatever_the_name_is(rftd: Rftd, experiment_file: Path) -> None:
    said = rftd("submit", str(experiment_file), "-s", "name=größe")
    assert "watch: rftd watch 'größe'   logs: rftd logs 'größe'   stop: rftd cancel 'größe'" in said.out


def test_submit_from_standard_input(rftd: Rftd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(experiment_files.TEXT.encode())))
    assert rftd("submit", "-", "-s", "name=piped").status == 0
    assert rftd("get", "piped").status == 0


def test_each_warning_is_said_once(rftd: Rftd, experiment_file: Path) -> None:
    """The file's own here, the rest by the daemon, which knows devices and engines."""
    warned = ["-s", "explorer.rollout_model.enforce_eager=true", "-s", "name=warned"]
    for more in ([], ["--dry-run"]):
        said = rftd("submit", str(experiment_file), *warned, *more)
        assert said.status == 0
        assert said.err.count("explorer.rollout_model.enforce_eager has no effect") == 1
    assert rftd("submit", str(experiment_file), *warned, "--quiet").err == ""


def test_dry_run_submits_nothing(rftd: Rftd, experiment_file: Path, served: Served) -> None:
    before = rftd("ls", "--json").out
    said = rftd("submit", str(experiment_file), "--dry-run")
    assert said.status == 0
    assert "nothing was submitted" in said.out
    assert f"the daemon at {served.url} would accept it; folder: /c/p/mine" in said.out
    plan = json.loads(rftd("submit", str(experiment_file), "--dry-run", "--json").out)
    assert plan["ok"]
    assert plan["config"]["name"] == "mine"
    assert rftd("ls", "--json").out == before


def test_the_same_request_id_is_the_same_experiment(rftd: Rftd, experiment_file: Path) -> None:
    key = ("--request-id", str(uuid5(NAMESPACE, "once")))
    assert submitted(rftd, experiment_file, "once", *key) == submitted(rftd, experiment_file, "once", *key)


def test_every_error_of_a_file_with_its_line(rftd: Rftd, experiment_file: Path) -> None:
    experiment_file.write_text(experiment_files.TEXT.replace("repeat_times", "repeat_tims") + "nonsense: 1\n")
    said = rftd("submit", str(experiment_file))
    assert said.status == 2
    assert said.out == ""
    assert f"--> {experiment_file}:6:3" in said.err
    assert "repeat_times" in said.err
    assert "nonsense" in said.err
    assert "rftd explain RFTD-CFG-004" in said.err
    as_json = rftd("submit", str(experiment_file), "--json")
    assert {error["field"] for error in json.loads(as_json.err)["errors"]} == {"algorithm.repeat_tims", "nonsense"}


def test_transitions_are_idempotent_and_conflicts_have_their_status(rftd: Rftd, experiment_file: Path) -> None:
    submitted(rftd, experiment_file, "life")
    refused = rftd("resume", "life")
    assert refused.status == 5
    assert "error[RFTD-CON-001]" in refused.err
    assert rftd("cancel", "life", "--reason", "enough", "--wait").out.split()[:2] == ["life", "cancelled"]
    again = rftd("cancel", "life", "--json")
    assert again.status == 0
    assert json.loads(again.out)["items"][0]["already"] is True
    page = json.loads(rftd("get", "life", "--json").out)
    assert page["experiment"]["summary"]["reason"] == "enough"


def test_some_of_many_failed(rftd: Rftd, experiment_file: Path) -> None:
    submitted(rftd, experiment_file, "one")
    said = rftd("cancel", "one", "missing", "--json")
    assert said.status == 7
    one, missing = json.loads(said.out)["items"]
    assert one["state"] == "cancelled"
    assert missing["error"]["code"] == "RFTD-NOF-001"
    assert rftd("cancel", "missing", "nowhere").status == 3
    assert rftd("cancel", "one", "two", "--request-id", "x").status == 2


def test_priorities_order_the_queue(rftd: Rftd, experiment_file: Path) -> None:
    first, urgent = submitted(rftd, experiment_file, "patient"), submitted(rftd, experiment_file, "urgent")
    last = submitted(rftd, experiment_file, "last", "--priority", "2")
    assert first["id"] != urgent["id"] != last["id"]

    def turns() -> list[tuple[str, int]]:
        items = json.loads(rftd("ls", "--state", "queued", "--json").out)["items"]
        mine = [each for each in items if each["name"] in ("patient", "urgent", "last")]
        return [(each["name"], each["priority"]) for each in sorted(mine, key=lambda each: each["queue_position"])]

    deadline_s = time.monotonic() + 240
    while len(turns()) < 3:  # what was submitted is queued a moment later, each by itself
        assert time.monotonic() < deadline_s, turns()
    assert turns() == [("last", 2), ("patient", 0), ("urgent", 0)]
    said = rftd("prioritize", "urgent", "3", "--reason", "the talk is tomorrow")
    assert said.status == 0
    assert said.out.startswith("urgent  queued  priority 3, number 1 in the queue")
    key = ("--request-id", str(uuid5(NAMESPACE, "lowered")), "--json")
    lowered = rftd("prioritize", "last", "-3", *key)
    assert lowered.status == 0, lowered.err
    assert json.loads(lowered.out)["priority"] == -3, lowered.err
    assert turns() == [("urgent", 3), ("patient", 0), ("last", -3)]
    assert rftd("prioritize", "last", "-1").status == 0
    again = rftd("prioritize", "last", "-3", *key)
    assert json.loads(again.out)["priority"] == -1, "the same request once more"
    assert turns()[-1] == ("last", -1), "the same request once more"
    listed = next(line for line in rftd("ls").out.splitlines() if line.startswith("urgent"))
    assert "1, priority 3" in listed
    assert "number 1 in the queue, priority 3" in rftd("get", "urgent").out
    rftd("cancel", "urgent", "patient", "last", "--wait")
    assert rftd("prioritize", "urgent", "5").status == 5
    assert rftd("prioritize", "nowhere", "5").status == 3
    assert rftd("prioritize", "urgent", "soon").status == 2
    assert rftd("prioritize", "urgent", "1", "--now").status == 2


def test_wait_exits_1_when_it_did_not_complete(rftd: Rftd, experiment_file: Path, served: Served) -> None:
    key = ("--request-id", str(uuid5(NAMESPACE, "ended")))
    submitted(rftd, experiment_file, "ended", *key)
    rftd("cancel", "ended", "--reason", "no need", "--wait")
    said = rftd("submit", str(experiment_file), "-s", "name=ended", *key, "--wait")
    assert said.status == 1
    assert "cancelled" in said.out
    assert "ended cancelled  no need" in said.err
    assert "accepted" in said.err
    assert rftd("watch", "ended").status == 1


def test_a_fork_is_an_experiment_below_its_parent(rftd: Rftd, experiment_file: Path) -> None:
    submitted(rftd, experiment_file, "root")
    said = rftd("fork", "root", "--at-step", "0", "-s", "buffer.total_steps=9", "--label", "team=b")
    assert said.status == 0, said.err
    assert "name=root-fork-0" in said.out
    assert "shares steps 1 to 0 of" in said.out
    listed = rftd("ls").out.splitlines()
    parent, fork = (next(i for i, line in enumerate(listed) if word in line) for word in ("root ", "└ root-fork-0"))
    assert fork == parent + 1
    assert listed[fork].endswith("step 0 of root")
    page = json.loads(rftd("get", "root-fork-0", "--json").out)["experiment"]
    root = json.loads(rftd("get", "root", "--json").out)["experiment"]["summary"]
    assert (page["summary"]["parent"], page["summary"]["forked_step"]) == (root["id"], 0)
    assert (page["summary"]["total_steps"], page["summary"]["labels"]) == (9, {"team": "b"})
    assert f"at step 0 of root ({root['id'][:8]})" in rftd("get", "root-fork-0").out


def test_labels_are_listed_and_chosen_by(rftd: Rftd, experiment_file: Path) -> None:
    submitted(
        rftd, experiment_file, "blue", "--label", "crew=a_b", "--label", "note=is 100% \N{GREEK SMALL LETTER PI}, ok"
    )
    submitted(rftd, experiment_file, "red", "--label", "crew=aXb", "--label", "Crew=a_b", "--label", "odd=crew")

    def names(*labels: str) -> list[str]:
        options = [word for label in labels for word in ("--label", label)]
        items = json.loads(rftd("ls", *options, "--json").out)["items"]
        return sorted(item["name"] for item in items)

    assert names("crew=a_b") == names("note") == names("note=is 100% \N{GREEK SMALL LETTER PI}, ok") == ["blue"]
    assert names("crew=aXb") == names("crew", "odd") == ["red"]
    assert names("crew") == ["blue", "red"]
    assert names("crew=a") == names("a_b") == names("cre") == names("crew=a_b", "odd") == names("%") == []
    table = rftd("ls", "--label", "crew").out.splitlines()
    assert "LABELS" in table[0]
    assert "Crew=a_b, crew=aXb, odd=crew" in next(" ".join(line.split()) for line in table if line.startswith("red"))
    assert "with these labels" in rftd("ls", "--label", "nobody").err
    assert rftd("ls", "--refused", "--label", "crew").status == 2
    rftd("cancel", "blue", "red", "--wait")


def test_an_archived_experiment_keeps_its_outcome_in_the_list(rftd: Rftd, experiment_file: Path) -> None:
    submitted(rftd, experiment_file, "kept")
    rftd("cancel", "kept", "--wait")
    assert rftd("archive", "kept").status == 0
    assert rftd("ls", "--state", "completed", "--label", "x").out == ""
    listed = next(line for line in rftd("ls", "--state", "cancelled").out.splitlines() if line.startswith("kept"))
    assert "cancelled, archived" in listed


def test_what_is_set_of_a_fork_is_read_here(rftd: Rftd, experiment_file: Path, tmp_path: Path) -> None:
    submitted(rftd, experiment_file, "paths")
    taskset = "buffer.explorer_input.taskset"
    assert rftd("fork", "paths", "--at-step", "0", "--name", "moved", "-s", f"{taskset}.path=./other.jsonl").status == 0
    config = json.loads(rftd("get", "moved", "--json").out)["experiment"]["config"]
    assert config["buffer"]["explorer_input"]["taskset"]["path"] == str(tmp_path / "other.jsonl")
    wrong = rftd("fork", "paths", "--at-step", "0", "-s", "buffer.total_stepz=1", "--json")
    assert wrong.status == 2
    assert "buffer.total_stepz" in wrong.err
    assert rftd("fork", "paths", "--at-step", "0", "-s", "nonsense").status == 2
    assert rftd("fork", "paths", "--at-step", "3").status == 5
    assert rftd("fork", "nowhere", "--at-step", "0").status == 3
    assert rftd("fork", "paths").status == 2
    assert rftd("fork", "paths", "--at-step", "-1").status == 2
