"""The end of vLLM's processes, which need no vLLM for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rftd.ops.errors import ConfigError, RolloutError, WorkError
from rftd.workers.engines.vllm.processes import EngineProcesses

EXPLORER = """
import multiprocessing, subprocess, time
from rftd.workers.engines.vllm import processes

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
from rftd.workers.engines.vllm import processes

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
SHARES = """
import mmap, multiprocessing, secrets, time
from pathlib import Path
from rftd.workers.engines.vllm import processes

segment = Path(f"/dev/shm/vllm_dist_{secrets.token_hex(16)}-tp:0-[0-1]-cpushm_0")
other = Path(f"/dev/shm/psm_{secrets.token_hex(4)}")

def core(ready):
    for path in (segment, other):
        path.write_bytes(bytes(4096))
    with segment.open("r+b") as file, other.open("r+b") as tracked:
        mapped = mmap.mmap(file.fileno(), 4096), mmap.mmap(tracked.fileno(), 4096)
        ready.set()
        time.sleep(600)

context = multiprocessing.get_context("fork")
ready = context.Event()
seen = processes.EngineProcesses()
context.Process(target=core, args=(ready,), name="EngineCore").start()
ready.wait()
seen.look()
ENDS
left = segment.exists(), other.exists()
seen.end()
for path in (segment, other):
    path.unlink(missing_ok=True)
print(left)
"""
TWO = """
import asyncio, multiprocessing, os, time
from rftd.workers.engines.vllm.processes import EngineProcesses

def core(ready):
    ready.put((os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]))
    time.sleep(600)

def start():
    ready = context.Queue()
    context.Process(target=core, args=(ready,), name="EngineCore").start()
    return ready.get()

async def run():
    engines = [EngineProcesses(), EngineProcesses()]
    gpus = [range(1, 2), range(2, 4)]
    started = [engine.started(start, 60.0, gpus=given) for engine, given in zip(engines, gpus)]
    for engine, (pid, visible) in zip(engines, await asyncio.gather(*started)):
        assert engine.pids == (pid,), (engine.pids, pid)
        print(visible)
    for engine in engines:
        engine.end()
    print(os.environ["CUDA_VISIBLE_DEVICES"])

context = multiprocessing.get_context("fork")
os.environ["CUDA_VISIBLE_DEVICES"] = "4,GPU-a,7,2"
asyncio.run(run())
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


def test_engine_is_lost_with_a_worker_but_not_with_a_child_ending_by_itself() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", LOSES], capture_output=True, timeout=120, text=True)
    assert done.stdout == "ended\n", done.stderr


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is no file here")
@pytest.mark.parametrize("end", ["seen.need(seen.pids)", "seen.end()"], ids=["ready", "start failed"])
def test_untracked_shared_memory_has_no_name_before_workers_may_be_killed(end: str) -> None:
    script = SHARES.replace("ENDS", end)
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, timeout=120, text=True)
    assert done.stdout == "(False, True)\n", done.stderr


def test_engines_that_start_at_once_have_each_their_own_processes_and_gpus() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", TWO], capture_output=True, timeout=120, text=True)
    assert done.stdout == "GPU-a\n7,2\n4,GPU-a,7,2\n", done.stderr


@pytest.mark.anyio
async def test_an_explorer_with_too_few_gpus_for_its_engines_says_how_many_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(WorkError, match=r"GPU 2 of its explorer, and CUDA_VISIBLE_DEVICES is '3'"):
        await EngineProcesses().started(list, 60.0, gpus=range(1, 2))


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
