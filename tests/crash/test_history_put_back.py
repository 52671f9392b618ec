"""An older history put back, one that is gone, and another in its place: nothing is acknowledged over them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from synthetic.daemon.scene import Scene
from synthetic.daemon.served_chat import FAKES, ServedChat, free_port
from synthetic.docs.pages import block_named
from synthetic.until import poll

from rftd.storage.files.served_history import FILE
from rftd.streams.events.experience import ExperienceProduced, RolloutFailed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
RUNS = 16
"""Of two steps with four groups of two."""


def gone(folder: Path) -> None:
    """Nothing lies where the history was."""


def another(folder: Path) -> None:
    """A history of another experiment, with as many rows: only its chain tells."""
    shutil.copy(folder / "newest" / FILE, folder / FILE)
    with sqlite3.connect(folder / FILE) as connection:
        connection.execute("UPDATE chain SET digest = zeroblob(32) WHERE row >= 0")
    connection.close()


def older(folder: Path) -> None:
    """The copy of an hour ago."""
    shutil.copy(folder / "older" / FILE, folder / FILE)


def _move(serving: Path, name: str) -> None:
    """Moves the history, with what lies beside it, into a folder of its own."""
    (serving / name).mkdir()
    for path in serving.glob(f"{FILE}*"):
        shutil.move(path, serving / name / path.name)


def _begun(scene: Scene, *overrides: str) -> tuple[str, Path, ServedChat]:
    """An experiment that serves: its name, the folder of its history, and a client once it answers."""
    name = scene.submit(block_named("served.yaml").text, *FAKES, f"explorer.proxy_port={free_port()}", *overrides)
    serving = scene.folder / "checkpoints" / "assistants" / name / "serving"
    chat = ServedChat(serving.parent, scene.host.tend)
    chat.until_up()
    return name, serving, chat


def _converse(chat: ServedChat, numbers: range) -> None:
    for number in numbers:
        assert chat.judge(chat.ask(f"{number}+1="), float(number), task_id=number // 2)
    chat.insist("POST", "/commit")


def _acknowledges(chat: ServedChat) -> bool:
    """True if the server takes feedback or a commit."""
    try:
        return chat.send("POST", "/commit").status_code == 200
    except (httpx.HTTPError, OSError):
        return False


@pytest.mark.parametrize(("replace", "why"), [(older, "older than the log"), (gone, "gone"), (another, "another one")])
def test_wrong_history_pauses_the_experiment_and_the_promised_one_resumes_it(
    replace: Callable[[Path], None], why: str, tmp_path: Path
) -> None:
    scene = Scene(tmp_path)
    with scene.host:
        name, serving, chat = _begun(scene, "buffer.total_steps=2")
        _converse(chat, range(4))
        (serving / "older").mkdir()
        with sqlite3.connect(serving / FILE) as now, sqlite3.connect(serving / "older" / FILE) as copy:
            now.backup(copy)
        now.close()
        copy.close()
        _converse(chat, range(4, RUNS - 2))
        scene.host.stop()
        _move(serving, "newest")
        replace(serving)
        scene.host.tend()
        page = scene.until_state(name, "paused")
        assert why in page.experiment.summary.reason, page.experiment.summary.reason
        assert not _acknowledges(chat)
        said = scene.rftd("verify", "--files")
        assert said.status == 1, said
        assert f"the history of stage 0, {serving / FILE}, is {why}" in said.out, said.out
        (serving / FILE).unlink(missing_ok=True)
        for path in (serving / "newest").iterdir():
            shutil.copy(path, serving / path.name)
        assert scene.rftd("resume", name).status == 0
        _converse(chat, range(RUNS - 2, RUNS))
        page = scene.until_ended(name, timeout_s=240.0)
        assert page.experiment.summary.state == "completed"
        assert page.experiment.books.balance == 0
    said = scene.rftd("verify", "--files")
    assert said.status == 0, said
    assert not scene.events(RolloutFailed)
    trained = {event.experience: event.reward for event in scene.events(ExperienceProduced)}
    assert sorted(trained.values()) == [float(number) for number in range(RUNS)]


def test_a_history_that_is_replaced_while_it_serves_takes_no_commit(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.host:
        name, serving, chat = _begun(scene)
        _converse(chat, range(4))
        answer = chat.ask("4+1=")
        _move(serving, "newest")
        reply = chat.send("POST", "/feedback", {"reward": 1.0, "msg_ids": [answer]})
        assert reply.status_code == 503, reply.text
        page = scene.until_state(name, "paused")
        assert "is missing" in page.experiment.summary.reason, page.experiment.summary.reason
        for path in (serving / "newest").iterdir():
            shutil.move(path, serving / path.name)
        scene.rftd("resume", name)
        assert chat.judge(answer, 1.0)
        poll(lambda: _acknowledges(chat), timeout_s=120.0)


def test_an_export_takes_the_history_along_and_no_promise_is_lost_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = Scene(tmp_path / "here")
    with here.host:
        name, _, chat = _begun(here, "buffer.total_steps=2")
        _converse(chat, range(RUNS - 2))
        exported = here.rftd("export", name, "--to", str(tmp_path / "run.rftd"), "--force")
        assert exported.status == 0, exported
    shutil.move(tmp_path / "here", tmp_path / "another machine")
    there = Scene(tmp_path / "there")
    imported = there.rftd("import", str(tmp_path / "run.rftd"))
    assert imported.status == 0, imported
    assert there.rftd("import", str(tmp_path / "run.rftd")).status == 0
    with there.host:
        page = there.until_state(name, "running")
        moved = there.data.root / "imported" / page.experiment.summary.id
        chat = ServedChat(moved, there.host.tend)
        chat.until_up()
        _converse(chat, range(RUNS - 2, RUNS))
        assert there.until_ended(name, timeout_s=240.0).experiment.summary.state == "completed"
    said = there.rftd("verify", "--files")
    assert said.status == 0, said
    trained = {event.experience: event.reward for event in there.events(ExperienceProduced)}
    assert sorted(trained.values()) == [float(number) for number in range(RUNS)]


def test_export_without_the_promised_history_is_refused_on_both_sides(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.host:
        name, serving, chat = _begun(scene)
        _converse(chat, range(4))
        scene.host.stop()
        whole, bare = tmp_path / "whole.rftd", tmp_path / "bare.rftd"
        assert scene.rftd("export", name, "--to", str(whole)).status == 0
        _move(serving, "newest")
        refused = scene.rftd("export", name, "--to", str(tmp_path / "none.rftd"))
        assert refused.status == 3, refused
        assert "the history of its conversations is gone" in refused.err, refused.err
        assert not (tmp_path / "none.rftd").exists()
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(bare, "w") as target:
            manifest = json.loads(source.read("manifest.json"))
            history = [part["member"]["name"] for part in manifest["files"] if part["kind"] == "history"]
            manifest["files"] = [part for part in manifest["files"] if part["kind"] != "history"]
            for member in source.namelist():
                if member not in (*history, "manifest.json"):
                    target.writestr(member, source.read(member))
            target.writestr("manifest.json", json.dumps(manifest))
        assert history
        refused = scene.rftd("import", str(bare), "--data", str(tmp_path / "elsewhere"))
        assert refused.status != 0
        assert "lacks the history of 2 rows" in refused.err, refused
