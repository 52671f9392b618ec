"""What `rftd verify` costs on a long log: records per second, and the memory of its process, at several lengths.

`python -P tests/bench/verify_log.py [EXPERIENCES ...]` makes a log of each length (by default 100,000 and 300,000), has
it checked by a process of its own and prints one JSON object; with two lengths or more also the memory that each
further experience takes, and what that makes of 10^8. A check that finds something, or misses a record, is no figure.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import note, tell
from synthetic.log.long_history import BATCH, EXPERIMENT, WORKER, LongHistory
from synthetic.log.synthetic_run import spec_of

from rftd.ops.ids import derive
from rftd.streams.events.batch import BatchPlanned, ObservedAt
from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.experiment import ExperimentSubmitted, ExperimentWarned, Fence
from rftd.streams.events.registry import Event, definition_of
from rftd.streams.events.step import EvalCompleted
from rftd.streams.events.task import GroupClosed
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.envelope import Decoded, Draft, Head
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.log.writers import holder_source, source_of
from rftd.streams.spec.spec import PolicySpec
from rftd.streams.sqlite.log import SqliteLog

OWNER = derive(EXPERIMENT, "daemon")
"""The holder of every role."""
TOKENS = 128
AT_ONCE = 2048
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


def preamble() -> list[tuple[Partition, Event, str]]:
    """What makes the roles of the history ones that hold a fence."""
    spec = spec_of("long", 1 << 20)
    stage = msgspec.structs.replace(spec.stages[1], policy=PolicySpec(max_staleness_versions=1 << 20))
    submitted = ExperimentSubmitted(spec=msgspec.structs.replace(spec, stages=(stage,)))
    spine = partition_of(topics.EXPERIMENTS, EXPERIMENT)
    places = [(role, spine) for role in ("controller", "planner", "dispatcher")]
    places += [("dispatcher", Partition(topics.TASKS, slot)) for slot in range(16)]
    fences = [(place, Fence(role=role, epoch=1, previous=0, owner=OWNER), role) for role, place in places]
    trainer = [
        (partition_of(stream, EXPERIMENT), Fence(role="trainer", epoch=1, previous=0, owner=OWNER), "trainer")
        for stream in (topics.EXPERIMENTS, topics.WEIGHTS, topics.CHECKPOINTS)
    ]
    joined = [worker_started(OWNER, "trainer", -1), worker_started(WORKER, "explorer", 0)]
    return [(spine, submitted, ""), *fences, *trainer, *joined]


def worker_started(worker: UUID, role: str, slot: int) -> tuple[Partition, Event, str]:
    """The record of a worker that joined."""
    event = WorkerStarted(worker=worker, role=role, slot=slot, host="h", pid=1, process_start_s=1.0)
    return Partition(topics.WORKERS, 0), event, ""


def drafts(experiences: int) -> Iterator[Draft]:
    """A whole run, as far as so many experiences."""
    history, number = LongHistory(), 0
    random = np.random.default_rng(1)
    oldest: dict[Any, int] = {}
    for place, event, role in preamble():
        history._offsets[place] = history._offsets.get(place, 0) + 1
        number += 1
        yield draft(place, event, role, number)
    while history.experiences < experiences:
        for decoded in history.steps(1):
            number += 1
            event = believable(decoded, random, oldest, history)
            yield draft(decoded.partition, event, definition_of(type(event)).owner or "", number)


def believable(decoded: Decoded, random: np.random.Generator, oldest: dict[Any, int], history: LongHistory) -> Event:
    """The event with what folds do not look at: tokens, and what a plan had seen."""
    event = decoded.event
    match event:
        case ExperienceProduced():
            oldest[event.experience] = event.spans[0].version
            response = Array.of(random.random(TOKENS // 2), "f4")
            mask = Array.of(np.ones(TOKENS // 2), "u1")
            tokens = Array.of(random.integers(0, 1 << 15, TOKENS), "u4")
            return msgspec.structs.replace(
                event, tokens=tokens, prompt_tokens=TOKENS // 2, loss_mask=mask, logprobs=response
            )
        case GroupClosed():
            members = tuple(msgspec.structs.replace(member, tokens=TOKENS) for member in event.members)
            return msgspec.structs.replace(event, members=members)
        case BatchPlanned():
            seen = tuple(ObservedAt(*place, end) for place, end in history._offsets.items())
            items = tuple(
                msgspec.structs.replace(item, staleness_versions=event.step - 1 - oldest.pop(item.experience))
                for item in event.experiences
            )
            return msgspec.structs.replace(event, experiences=items, observed=seen)
        case EvalCompleted():
            return ExperimentWarned(text="evaluated")
        case _:
            return event


def draft(place: Partition, event: Event, role: str, number: int) -> Draft:
    """A draft as the owner of its type writes it."""
    definition = definition_of(type(event))
    id = event.experience if isinstance(event, ExperienceProduced) else derive(EXPERIMENT, "event", number)
    head = Head(
        id=id,
        type=definition.name,
        version=definition.version,
        experiment=EXPERIMENT,
        source=holder_source(role, OWNER) if role else source_of("explorer", WORKER),
        time_ns=number,
        role=role,
        epoch=1 if role else 0,
    )
    return Draft(place, id, _encoder.encode(head), _encoder.encode(event))


async def fill(folder: Path, experiences: int) -> int:
    """Writes the log; how many records it has."""
    log, some, count = await SqliteLog.open(folder), [], 0
    for each in drafts(experiences):
        some.append(each)
        if len(some) >= AT_ONCE:
            await log.append(some)
            count, some = count + len(some), []
    await log.append(some)
    await log.close()
    return count + len(some)


def checked(data: Path, records: int) -> dict[str, float]:
    """What one check took. Ends the process if it found anything, or read less than everything."""
    code = "import sys; from rftd.daemon.cli.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "--data", str(data), "verify", "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said, error = process.communicate()
        wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(f"the check ended with {process.returncode}: {said[-2000:]}{error[-2000:]}")
    if (seen := json.loads(said)["records"]) != records:
        sys.exit(f"the check read {seen} of {records} records")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_s": round(wall_s, 2),
        "cpu_s": round(cpu_s, 2),
        "records_per_s": round(records / wall_s),
        "records_per_cpu_s": round(records / cpu_s),
        "memory_mib": round(after.ru_maxrss / 1024, 1),
    }


def main(lengths: list[int]) -> None:
    """Prints the figures."""
    found = []
    for experiences in sorted(lengths):
        with TemporaryDirectory(prefix="rftd-", dir=os.environ.get("RFTD_BENCH_DIR")) as folder:
            records = asyncio.run(fill(Path(folder) / "log", experiences))
            size = (Path(folder) / "log" / "log.db").stat().st_size
            found.append({"experiences": experiences, "records": records, "log_mib": round(size / 2**20, 1)})
            found[-1] |= checked(Path(folder), records)
            note(found[-1])
    figures: dict[str, Any] = {"steps_of": BATCH, "load": os.getloadavg()[0], "lengths": found}
    if len(found) > 1:
        first, last = found[-2], found[-1]
        grown = (last["memory_mib"] - first["memory_mib"]) * 2**20 / (last["experiences"] - first["experiences"])
        figures["bytes_per_further_experience"] = round(grown, 3)
        figures["memory_mib_at_1e8"] = round(last["memory_mib"] + max(0.0, grown) * 1e8 / 2**20)
    tell(figures)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [100_000, 300_000])
