"""Folders of agents and environments are copied at submission: a changed one is another copy; unread copies end."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from synthetic.log.synthetic_run import spec_of

from rftd.daemon.run.supervisor.agent_folders import AgentFolders, names_agent_folders
from rftd.daemon.run.supervisor.kept_tables import KeptTables
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import OWNER, AccessRole, Asker, NotAllowedError
from rftd.daemon.trust.judge import SubmissionJudge
from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.storage.files.folder_owner import LogIdentity
from rftd.streams.folds.spine import Kept

LOG = LogIdentity(id="ours", place="/data")
STRANGER = Asker(name="ann", role=AccessRole.SUBMIT)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    (folder / "inner").mkdir(parents=True)
    (folder / "agent.sh").write_text("echo 1\n")
    (folder / "inner/notes.txt").write_text("one")
    (folder / "link").symlink_to("agent.sh")
    return folder


def file_of(root: Path, agent: Path) -> dict[str, Any]:
    arguments = {"agent_command": ["sh", "agent.sh"], "agent_folder": str(agent)}
    taskset = {"default_workflow_type": "agent_command_workflow", "workflow_args": arguments}
    return {"checkpoint_root_dir": str(root), "buffer": {"explorer_input": {"taskset": taskset}}}


def folder_in(config: dict[str, Any]) -> Path:
    return Path(config["buffer"]["explorer_input"]["taskset"]["workflow_args"]["agent_folder"])


def read(root: Path, agent: Path, asker: Asker = OWNER) -> Path:
    config = file_of(root, agent)
    assert names_agent_folders(config)
    kept = folder_in(AgentFolders(SubmissionJudge(asker, Allowances()), KeptTables(LOG)).read(config))
    assert folder_in(config) == agent, "the submission itself is unchanged"
    return kept


def test_a_folder_is_kept_as_it_was_at_submission(tmp_path: Path, agent: Path) -> None:
    first = read(tmp_path / "root", agent)
    assert first.parent == tmp_path / "root/.tables/ours"
    (agent / "agent.sh").write_text("echo 2\n")
    assert (first / "agent.sh").read_text() == "echo 1\n"
    assert os.readlink(first / "link") == "agent.sh"
    assert (first / "inner/notes.txt").read_text() == "one"
    second = read(tmp_path / "root", agent)
    assert second != first and (second / "agent.sh").read_text() == "echo 2\n"
    assert read(tmp_path / "root", second) == second, "a copy submitted again is its own copy"
    assert sorted(second.parent.iterdir()) == sorted([first, second]), "nothing else is left"


@pytest.mark.parametrize("change", ["content", "name", "executable", "link", "removed"])
def test_every_change_of_a_folder_is_another_copy(tmp_path: Path, agent: Path, change: str) -> None:
    first = read(tmp_path / "root", agent)
    match change:
        case "content":
            (agent / "inner/notes.txt").write_text("two")
        case "name":
            (agent / "inner/notes.txt").rename(agent / "inner/note.txt")
        case "executable":
            (agent / "agent.sh").chmod(0o755)
        case "link":
            (agent / "link").unlink()
            (agent / "link").symlink_to("inner")
        case "removed":
            (agent / "inner/notes.txt").unlink()
    assert read(tmp_path / "root", agent) != first


def test_the_folder_of_an_environment_is_kept_beside_that_of_an_agent(tmp_path: Path, agent: Path) -> None:
    server = tmp_path / "server"
    server.mkdir()
    (server / "sums.py").write_text("1\n")
    arguments = {"environment_command": ["python3", "sums.py"], "environment_folder": str(server)}
    config = file_of(tmp_path / "root", agent)
    config["buffer"]["explorer_input"]["eval_tasksets"] = [{"path": "command://sums", "workflow_args": arguments}]
    folders = AgentFolders(SubmissionJudge(OWNER, Allowances()), KeptTables(LOG))
    [changed] = folders.read(config)["buffer"]["explorer_input"]["eval_tasksets"]
    kept = Path(changed["workflow_args"]["environment_folder"])
    (server / "sums.py").write_text("2\n")
    assert kept.parent == tmp_path / "root/.tables/ours" and (kept / "sums.py").read_text() == "1\n"
    assert [note.split(":")[0].rsplit(".", 1)[1] for note in folders.notes] == ["agent_folder", "environment_folder"]
    arguments["environment_folder"] = str(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"environment_folder '.*' is no folder"):
        folders.read(config)


def test_a_folder_that_cannot_be_kept_is_refused_at_its_field(tmp_path: Path, agent: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder") as refused:
        read(tmp_path / "root", tmp_path / "gone")
    assert str(refused.value.field).endswith("taskset.workflow_args.agent_folder")
    with (agent / "large").open("wb") as file:
        file.truncate(limits.SANDBOX_TASK_SIZE_BYTES + 1)
    with pytest.raises(ConfigError, match="more than 64 MiB"):
        read(tmp_path / "root", agent)
    with pytest.raises(NotAllowedError):
        read(tmp_path / "root", agent, STRANGER)
    assert not (tmp_path / "root").exists()


def test_a_copy_read_by_no_experiment_is_unused_after_a_while(tmp_path: Path, agent: Path) -> None:
    root = tmp_path / "root"
    os.utime(agent, ns=(0, 0))
    first = read(root, agent)
    now_ns = first.stat().st_mtime_ns
    (agent / "agent.sh").write_text("echo 2\n")
    second = read(root, agent)
    spec = replace(spec_of("small", 3), config=file_of(root, first))
    entries: list[Any] = [SimpleNamespace(spec=spec, spine=SimpleNamespace(kept=Kept.ARCHIVED))]
    assert KeptTables(LOG).unused(entries, now_ns=now_ns) == [], "a submission may be about to name it"
    [unused] = KeptTables(LOG).unused(entries, now_ns=now_ns + 3600 * 10**9)
    assert unused.path == str(second)
    assert unused.size_bytes >= len("echo 2\none")
