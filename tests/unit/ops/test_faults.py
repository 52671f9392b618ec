"""Armed points strike when they are due, and once only if a file says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rftd.ops.errors import UsageError
from rftd.ops.faults import Faults, InjectedFault


def test_a_point_that_is_not_armed_does_nothing() -> None:
    Faults("log.before_ack=fail").point("log.before_commit")


def test_a_point_fails_from_its_nth_passage_on() -> None:
    faults = Faults("log.before_ack=fail@3")
    faults.point("log.before_ack")
    faults.point("log.before_ack")
    for _ in range(2):
        with pytest.raises(InjectedFault, match=r"log\.before_ack"):
            faults.point("log.before_ack")


def test_a_file_remembers_over_processes_that_it_struck(tmp_path: Path) -> None:
    specification = f"log.before_ack=fail@2!{tmp_path / 'first'},log.before_ack=fail@3!{tmp_path / 'second'}"
    for strikes_at in (2, 3, 99):
        process = Faults(specification)
        struck = []
        for passage in range(1, 6):
            try:
                process.point("log.before_ack")
            except InjectedFault:
                struck.append(passage)
                break
        assert struck == ([strikes_at] if strikes_at < 99 else [])


def test_a_kill_is_a_kill(tmp_path: Path) -> None:
    program = "from rftd.ops import faults; faults.point('log.before_ack')"
    environ = {"RFTD_FAULTS": f"log.before_ack=kill!{tmp_path / 'once'}", "RFTD_FAULTS_HITS": str(tmp_path / "hits")}
    for status in (-signal.SIGKILL, 0):
        assert subprocess.run([sys.executable, "-P", "-c", program], env=os.environ | environ).returncode == status
    assert (tmp_path / "hits").read_text() == "log.before_ack\nlog.before_ack\n"


@pytest.mark.parametrize("item", ["nowhere=kill", "log.before_ack=explode", "log.before_ack"])
def test_what_arms_nothing_is_refused(item: str) -> None:
    with pytest.raises(UsageError, match="arms no fault point"):
        Faults(item)
