"""The GPUs that a place gets: its own while there are enough, its former ones again, else those that fewest have."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from synthetic.until import poll

from rftd.ops.errors import WorkError
from rftd.workers.devices.host import Device, Host
from rftd.workers.hosts.allotment import Allotment
from rftd.workers.hosts.executor import Handle, WorkerOrder
from rftd.workers.hosts.local import LocalExecutor

GPUS = tuple(
    Device(kind="cuda", index=index, name="NVIDIA L4", memory_bytes=24 * 1024**3, visible=str(index))
    for index in range(4)
)


class Workers:
    """Places whose workers live until they are told to end."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        self.allotment = Allotment(lambda place: place not in self.ended)

    def gpus(self, place: str, count: int) -> list[int]:
        return [gpu.index for gpu in self.allotment.give(place, count, GPUS)]


def test_workers_of_one_experiment_share_none() -> None:
    workers = Workers()
    assert workers.gpus("explorer 0", 2) == [0, 1]
    assert workers.gpus("explorer 1", 1) == [2]
    assert workers.gpus("trainer", 1) == [3]


def test_a_worker_that_is_started_anew_has_its_own_again() -> None:
    workers = Workers()
    for place in ("explorer 0", "explorer 1", "trainer"):
        workers.gpus(place, 1)
    assert workers.gpus("explorer 1", 1) == [1]
    workers.ended.add("explorer 0")
    assert workers.gpus("trainer", 1) == [2], "though another one is free by now"


def test_where_there_are_too_few_the_least_used_are_shared() -> None:
    workers = Workers()
    assert workers.gpus("one", 3) == [0, 1, 2]
    assert workers.gpus("two", 2) == [0, 3]
    workers.ended.add("one")
    assert workers.gpus("three", 2) == [1, 2]


def test_those_of_a_worker_of_an_earlier_daemon_count() -> None:
    workers = Workers()
    workers.allotment.note("explorer 0", "0,1")
    assert workers.gpus("trainer", 1) == [2]


def test_more_than_there_are_cannot_be_given() -> None:
    with pytest.raises(WorkError, match="needs 5 GPUs, and this machine has 4"):
        Workers().gpus("explorer 0", 5)


def order(folder: Path, role: str, devices: int) -> WorkerOrder:
    slot = 0 if role == "explorer" else -1
    log_path = folder / f"{role}.log"
    return WorkerOrder(experiment=UUID(int=7), role=role, slot=slot, threads=1, log_path=log_path, devices=devices)


SHOW = "import os, sys; print(os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ.get('CUDA_DEVICE_ORDER'))"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Host, str, int], tuple[Handle, str]]:
    """Starts a real process that says what it may see; its handle, and what it said."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    (tmp_path / "show.py").write_text(SHOW)

    def start(host: Host, role: str, devices: int) -> tuple[Handle, str]:
        command = (sys.executable, str(tmp_path / "show.py"))
        executor = LocalExecutor("none", home=str(tmp_path), command=command, host=lambda: host)
        asked = order(tmp_path, role, devices)
        handle = executor.start(asked)
        poll(lambda: handle.exit_code() is not None)
        return handle, asked.log_path.read_text().strip() if asked.log_path.exists() else ""

    return start


def test_a_worker_sees_the_gpus_that_it_was_given(started: Callable[[Host, str, int], tuple[Handle, str]]) -> None:
    assert started(Host(devices=GPUS), "explorer", 2)[1] == "0,1 PCI_BUS_ID"
    assert started(Host(devices=GPUS), "trainer", 0)[1] == "None None", "given none, it sees what the machine shows"


def test_a_worker_that_needs_more_than_is_left_says_so(started: Callable[[Host, str, int], tuple[Handle, str]]) -> None:
    """The daemon was started again where there are fewer."""
    handle, _ = started(Host(devices=GPUS[:1]), "explorer", 2)
    assert "needs 2 GPUs, and this machine has 1" in handle.reason
    assert os.environ.get("CUDA_VISIBLE_DEVICES") is None


def test_the_machine_is_looked_at_once(tmp_path: Path) -> None:
    looks: list[Host] = []

    def look() -> Host:
        looks.append(Host(devices=GPUS))
        return looks[-1]

    executor = LocalExecutor("none", home=str(tmp_path), host=look)
    assert executor.host().gpus == executor.host().gpus == GPUS
    assert len(looks) == 1
