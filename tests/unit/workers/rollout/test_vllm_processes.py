"""The end of vLLM's processes, which need no vLLM for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rftd.ops.errors import ConfigError, RolloutError
from rftd.workers.rollout.engines.vllm.processes import EngineProcesses

EXPLORER = """
import multiprocessing, subprocess, time
from rftd.workers.rollout.engines.vllm import processes

processes.GRACE_S = 1e6

def core(ready):
    subprocess.Popen(["sleep", "600"])
    ready.set()
    time.sleep(600)

context = multiprocessing.get_context("fork")
ready = context.Event()
seen = processes.EngineProcesses()
context.Process(target=core, args=(ready,), name="EngineCore").start()
ready.wait()
seen.look()
assert len(seen.pids) == 2 and not seen.ended()
seen.end()
assert len(seen.ended()) == 2
print("ended")
"""
LOSES = """
import multiprocessing, os, signal, subprocess, time
from rftd.workers.rollout.engines.vllm import processes

def core(pids):
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    pids.put([child.pid for child in children])
    for child in children:
        child.wait()
    time.sleep(600)

context = multiprocessing.get_context("fork")
pids = context.Queue()
seen = processes.EngineProcesses()
context.Process(target=core, args=(pids,), name="EngineCore").start()
compiler, *workers = pids.get()
seen.look()
seen.need(workers)
os.kill(compiler, signal.SIGKILL)
while not seen.ended():
    pass
assert not seen.lost
os.kill(workers[1], signal.SIGKILL)
while len(seen.ended()) < 2:
    pass
assert seen.lost
seen.end()
assert len(seen.ended()) == 4
print("ended")
"""
FIRST = f"""
import ctypes, subprocess, sys
# Whose parent dies is a child of this one from then on.
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
sys.exit(subprocess.Popen([sys.executable, "-P", "-c", {EXPLORER!r}]).wait())
"""
"""The first process of a container, which collects the status of its own child and of no other."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process have others' children")
def test_processes_whose_status_nobody_collects_are_not_waited_for() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", FIRST], capture_output=True, timeout=120, text=True)
    assert done.stdout == "ended\n", done.stderr


def test_an_engine_is_lost_with_one_of_its_workers_and_not_with_a_child_that_ends_of_itself() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", LOSES], capture_output=True, timeout=120, text=True)
    assert done.stdout == "ended\n", done.stderr


@pytest.mark.anyio
@pytest.mark.parametrize("error", [TypeError("no argument 'x'"), ValueError("no argument 'x'"), KeyError("x")])
async def test_whatever_vllm_raises_as_it_starts_is_told(error: Exception) -> None:
    def start() -> None:
        raise error

    with pytest.raises(RolloutError, match=r"vLLM does not start: .*'x'"):
        await EngineProcesses().started(start, 60.0)


@pytest.mark.anyio
async def test_an_error_of_ours_stays_what_it_is() -> None:
    def start() -> None:
        raise ConfigError("no such device")

    with pytest.raises(ConfigError, match="no such device"):
        await EngineProcesses().started(start, 60.0)
