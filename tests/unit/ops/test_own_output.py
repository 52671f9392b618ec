"""A worker's log file that a workflow fills begins anew, also for programs that hold it open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rftd.ops.log_file import OwnOutput

LINE = b"x" * 99 + b"\n"


def output_of(descriptor: int) -> OwnOutput:
    return OwnOutput("trainer.log", descriptor=descriptor, size_max_bytes=1000, kept_bytes=350)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system has no /proc")
def test_a_full_file_begins_anew_for_everybody_who_writes_to_it(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    with path.open("ab", buffering=0) as file:
        output = output_of(file.fileno())
        file.write(LINE * 10)
        assert not output.full
        file.write(b"last\n")
        assert output.full
        output.trim()
        assert (tmp_path / "trainer.log.1").read_bytes() == LINE * 3 + b"last\n", "whole lines"
        file.write(b"mine\n")
        # As an engine or a program that the worker started, and that inherited its output.
        subprocess.run([sys.executable, "-c", "print('theirs')"], stdout=file, check=True)
    assert path.read_bytes() == b"mine\ntheirs\n"


def test_a_file_of_another_name_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.log"
    with path.open("ab", buffering=0) as file:
        file.write(LINE * 20)
        output_of(file.fileno()).trim()
    assert path.read_bytes() == LINE * 20


def test_what_is_no_file_or_does_not_append_is_never_full(tmp_path: Path) -> None:
    with (tmp_path / "trainer.log").open("wb", buffering=0) as file:
        file.write(LINE * 20)
        assert not output_of(file.fileno()).full
    reading, writing = os.pipe()
    os.write(writing, LINE * 20)
    assert not output_of(writing).full
    os.close(reading)
    os.close(writing)
    assert not output_of(writing).full


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_without_space_for_its_end_it_begins_anew_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    (tmp_path / "trainer.log.1").symlink_to("/dev/full")
    with path.open("ab", buffering=0) as file:
        file.write(LINE * 20)
        output_of(file.fileno()).trim()
    assert path.read_bytes() == b""
