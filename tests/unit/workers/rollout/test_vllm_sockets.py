"""vLLM leaves a socket for each engine: their folder goes with the engine, or after its process was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rftd.workers.engines.vllm.sockets import PREFIX, VARIABLE, SocketFolder

KILLED = """
import os, signal, sys
from rftd.workers.engines.vllm.sockets import SocketFolder
folder = SocketFolder()
(folder.path / "a socket").touch()
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # A test's own folder has a name that is too long for sockets.
    short = Path("/tmp") / f"rftd-test-{os.getpid()}"
    short.symlink_to(tmp_path)
    monkeypatch.setenv(VARIABLE, str(short))
    yield short
    short.unlink()


def left(base: Path) -> list[Path]:
    return list(base.glob(f"{PREFIX}*"))


def test_it_goes_with_its_engine_and_vllm_is_told_the_old_place_again(base: Path) -> None:
    first, second = SocketFolder(), SocketFolder()
    assert first.path is not None and second.path is not None
    assert (first.path.parent, second.path.parent) == (base, base)
    assert os.environ[VARIABLE] == str(second.path)
    assert len(str(second.path / ("0" * 36))) < 107
    (first.path / "a socket").touch()
    first.close()
    assert left(base) == [second.path]
    second.close()
    second.close()
    assert (left(base), os.environ[VARIABLE]) == ([], str(base))


def test_that_of_a_process_that_was_killed_goes_with_the_next_engine_and_no_other(base: Path) -> None:
    ours = SocketFolder()
    killed = subprocess.run([sys.executable, "-P", "-c", KILLED], capture_output=True, text=True, timeout=60)
    path = Path(killed.stdout.strip())
    assert path in left(base)
    third = SocketFolder()
    assert ours.path is not None and third.path is not None
    assert set(left(base)) == {ours.path, third.path}
    third.close()
    ours.close()


def test_where_none_can_be_vllm_keeps_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("/nowhere/at/all", str(tmp_path / ("x" * 60))):
        monkeypatch.setenv(VARIABLE, place)
        folder = SocketFolder()
        assert (folder.path, os.environ[VARIABLE]) == (None, place)
        folder.close()
