"""Artifacts: named by digest, never half-written, never silently damaged."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rftd.ops.errors import LogCorruptError, NotFoundError, UsageError
from rftd.storage.files.artifacts import ArtifactStore


def test_put_then_read(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "deep" / "artifacts")
    name = store.put(b"tokens")
    assert name == hashlib.sha256(b"tokens").hexdigest()
    assert store.put(b"tokens") == name
    assert store.read(name) == b"tokens"
    assert store.has(name)
    assert [path.name for path in store.root.rglob("*") if path.is_file()] == [name]


def test_an_artifact_that_is_not_there(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    with pytest.raises(NotFoundError):
        store.read("0" * 64)
    assert not store.has("0" * 64)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "0" * 63])
def test_what_is_no_digest_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        ArtifactStore(tmp_path).read(name)


def test_damage_is_found_when_read(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    name = store.put(b"tokens")
    store.path_of(name).write_bytes(b"tokenz")
    with pytest.raises(LogCorruptError, match=name):
        store.read(name)


def test_a_torn_file_is_replaced_by_the_next_put(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    name = store.put(b"tokens")
    store.path_of(name).write_bytes(b"tok")
    store.put(b"tokens")
    assert store.read(name) == b"tokens"


@pytest.mark.parametrize(("point", "kept"), [("artifact.before_rename", False), ("artifact.after_rename", True)])
def test_a_killed_put_leaves_nothing_or_everything(tmp_path: Path, point: str, kept: bool) -> None:
    script = (
        "import sys, pathlib; from rftd.storage.files.artifacts import ArtifactStore\n"
        "ArtifactStore(pathlib.Path(sys.argv[1])).put(b'x')"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(tmp_path)],
        env={**os.environ, "RFTD_FAULTS": f"{point}=kill"},
        check=False,
        timeout=240,
    )
    assert done.returncode == -signal.SIGKILL
    store, name = ArtifactStore(tmp_path), hashlib.sha256(b"x").hexdigest()
    assert store.has(name) is kept
    assert store.put(b"x") == name
    assert store.read(name) == b"x"
