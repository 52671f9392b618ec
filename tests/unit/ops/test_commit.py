"""The commit of an installation: of a checkout that runs, of one by pip from a repository, and of none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rftd.ops.commit import commit_of

COMMIT = "0123456789abcdef" * 2 + "01234567"


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """The commit of a package whose installer wrote this down."""
    site = folder / "site"
    about = site / "thing-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (about / "direct_url.json").write_text(text)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return commit_of("thing")


def editable(folder: Path) -> str:
    return json.dumps({"url": (folder / "a checkout").as_uri(), "dir_info": {"editable": True}})


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": "ref: refs/heads/main\n", "refs/heads/main": f"{COMMIT}\n"},
        {"HEAD": "ref: refs/heads/main\n", "packed-refs": f"# pack-refs with: peeled\n{COMMIT} refs/heads/main\n"},
        {"HEAD": f"{COMMIT}\n"},
    ],
    ids=["branch", "packed", "detached"],
)
def test_of_a_checkout_it_is_its_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tmp_path / "a checkout" / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert installed(tmp_path, monkeypatch, editable(tmp_path)) == COMMIT


def test_of_a_work_tree_it_is_that_of_the_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "main" / ".git" / "worktrees" / "a"
    place.mkdir(parents=True)
    (place / "HEAD").write_text("ref: refs/heads/topic\n")
    (place / "commondir").write_text("../..\n")
    topic = tmp_path / "main" / ".git" / "refs" / "heads" / "topic"
    topic.parent.mkdir(parents=True)
    topic.write_text(f"{COMMIT}\n")
    (tmp_path / "a checkout").mkdir()
    (tmp_path / "a checkout" / ".git").write_text(f"gitdir: {place}\n")
    assert installed(tmp_path, monkeypatch, editable(tmp_path)) == COMMIT


@pytest.mark.parametrize(
    ("about", "commit"),
    [
        ({"url": "https://example.org/r.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, COMMIT),
        ({"url": "https://example.org/r.git", "vcs_info": {"vcs": "git", "commit_id": '"} 1\n'}}, ""),
        ({"url": "https://example.org/thing.whl", "archive_info": {}}, ""),
        ({"url": "file:///nowhere", "dir_info": {"editable": True}}, ""),
        ({"url": 5}, ""),
        ([], ""),
    ],
    ids=["repository", "hostile", "archive", "gone", "mistyped", "no object"],
)
def test_otherwise_it_is_what_the_installer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, about: Any, commit: str
) -> None:
    assert installed(tmp_path, monkeypatch, json.dumps(about)) == commit


def test_what_is_not_installed_has_none() -> None:
    assert commit_of("no such package") == ""
