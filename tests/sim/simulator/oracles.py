"""What must hold at the end of every world, whatever happened in it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from rftd.ops.errors import RftdError
from rftd.storage.files import checkpoints
from rftd.streams.events.batch import BatchPlanned
from rftd.streams.events.checkpoint import CheckpointCommitted
from rftd.streams.events.experiment import Fence
from rftd.streams.events.step import GenerationStarted, StepCompleted
from rftd.streams.events.task import EvalLeased, GroupLeased, TaskLeased
from rftd.streams.events.weights import WeightsPublished, WeightsRetired
from rftd.streams.events.worker import WorkerStarted
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Kept, Status
from rftd.streams.log import topics
from rftd.streams.log.codec import decode, decode_as
from rftd.streams.log.envelope import Record
from rftd.streams.log.fencing import FenceView
from rftd.streams.log.topics import Partition, partition_of
from rftd.streams.verify.checker import verify
from rftd.workers.engines.fake.trainer import FakeTrainerEngine
from rftd.workers.training.assembly import Assembly
from simulator.kinds import KINDS
from simulator.kinds.foreigners import is_of_foreigner
from simulator.plans import patient, ranked
from simulator.readings import effective, records

if TYPE_CHECKING:
    from simulator.world import World

LOST_AFTER_S = 15.0
"""Of silence: what a worker may be declared lost for."""


async def judge(world: World) -> None:
    """Adds everything that is wrong to the world's failures."""
    failures = world.failures
    for oracle in ORACLES:
        failures += [f"{oracle.__name__}: {what}" for what in oracle(world)]
    try:
        report = await verify(world.log)
    except RftdError as error:
        failures.append(f"verify: {error.what}")
    else:
        # Repetitions are what some logs were asked for; on Kafka they are no finding either.
        repeats = world.scenario.faults.repeat_p > 0.0
        findings = [each for each in report.findings if not (repeats and each.rule == "unique")]
        # What foreigners write is found, and nothing else is.
        findings = [each for each in findings if not is_of_foreigner(each)]
        failures += [f"verify: {finding.rule}: {finding.what}" for finding in findings]
        for books in report.experiments:
            if books.produced != books.planned + books.retired_unused + books.waiting:
                failures.append(f"verify: the sum that it shows is false: {books}")
    for kind in KINDS:
        if kind.name in world.scenario.extras:
            failures += [f"{kind.name}: {what}" for what in await kind.judge(world, world.scenario.extras[kind.name])]
    if not world.scenario.salted:
        failures += [f"recomputed: {what}" for what in await recomputed(world)]


def ended(world: World) -> Iterator[str]:
    """The experiment completed, or was cancelled by its owner."""
    spine = world.state.spine
    cancels = any(command.verb == "cancel" for command in world.scenario.commands)
    if spine.status is not Status.COMPLETED and not (spine.status is Status.CANCELLED and cancels):
        yield f"{spine.status}: {spine.code} {spine.reason}"
    fork = world.fork_state.spine
    if fork.status not in (None, Status.COMPLETED):
        yield f"its fork {fork.status}: {fork.code} {fork.reason}"


def balanced(world: World) -> Iterator[str]:
    """The books balance, and nothing waits or rests after the end."""
    replay_buffer = world.state.replay_buffer
    counts = replay_buffer.counts()
    left = counts["waiting"] + counts["cooling"]
    if counts["balance"] or (world.state.spine.status is Status.COMPLETED and left):
        yield str(counts)


def acknowledged(world: World) -> Iterator[str]:
    """I1: every acknowledged event is at its place."""
    for id, place in world.network.acked:
        records = world.log.stored(place.partition, place.offset, 1)
        if place.partition.stream == topics.HEARTBEATS and not records:
            continue  # forgotten by retention
        if not records or records[0].offset != place.offset or decode(records[0]).head.id.bytes != id:
            yield f"event {id.hex()} is not at {place.partition}@{place.offset}"


def fenced(world: World) -> Iterator[str]:
    """I7: a fold with a reading of the fences that is written here gives the same state as the product's."""
    owners: dict[tuple[Partition, Any, str], tuple[int, str]] = {}
    state = RunState(world.experiment)
    for record in records(world):
        decoded = decode(record)
        head, event = decoded.head, decoded.event
        if isinstance(event, Fence):
            key = (record.partition, head.experiment, event.role)
            epoch, _ = owners.get(key, (0, ""))
            if event.previous == epoch < event.epoch and head.source.endswith(f"/{event.owner}"):
                owners[key] = (event.epoch, head.source)
                state.apply(decoded)
            continue
        epoch, source = owners.get((record.partition, head.experiment, head.role), (0, head.source))
        if not head.role or (head.epoch >= epoch and head.source == source):
            state.apply(decoded)
    yield from _differences(digest(state), digest(world.state))


def obeyed(world: World) -> Iterator[str]:
    """I7: nobody works on a lease that a fence made void."""
    given = {
        each.event.lease
        for each in effective(world, topics.TASKS)
        if isinstance(each.event, TaskLeased | EvalLeased | GroupLeased)
    }
    for each in effective(world, topics.EXPERIENCES):
        if each.head.causation is not None and each.head.causation not in given:
            yield f"{each.head.type} at {each.partition}@{each.offset} answers a lease that has no effect"


def confluent(world: World) -> Iterator[str]:
    """I4 and rule 6: any interleaving of the partitions, with records repeated, folds to the same state."""
    chance = random.Random(f"fold {world.scenario.seed}")
    queues: dict[Partition, list[Record]] = {}
    for record in records(world):
        queues.setdefault(record.partition, []).append(record)
    for partition, queue in queues.items():
        for _ in range(min(3, len(queue))):
            source = chance.randrange(len(queue))
            again = queue[source]
            place = chance.randint(source + 1, len(queue))
            queue.insert(place, Record(partition, 1_000_000 + place, again.chain, again.head, again.value))
    state, fences = RunState(world.experiment), FenceView()
    left = {partition: iter(queue) for partition, queue in queues.items()}
    while left:
        partition = chance.choice(list(left))
        for _ in range(chance.choice([1, 1, 5, 50])):
            record_or_none = next(left[partition], None)
            if record_or_none is None:
                del left[partition]
                break
            decoded = decode(record_or_none)
            if fences.admit(partition, decoded.head, decoded.event):
                state.apply(decoded)
    yield from _differences(digest(state), digest(world.state))


def lineage(world: World) -> Iterator[str]:
    """I5: the chain of generations that leads to the last weights executes each plan once, in order."""
    spine = world.state.spine
    events = list(effective(world, topics.EXPERIMENTS))
    plans = {each.event.step: each.event.batch for each in events if isinstance(each.event, BatchPlanned)}
    steps: dict[int, dict[int, StepCompleted]] = {}
    starts: dict[int, GenerationStarted] = {}
    for each in events:
        if isinstance(each.event, StepCompleted):
            steps.setdefault(each.event.generation, {}).setdefault(each.event.step, each.event)
        elif isinstance(each.event, GenerationStarted):
            starts.setdefault(each.event.generation, each.event)
    committed: dict[str, list[CheckpointCommitted]] = {}
    for each in effective(world, topics.CHECKPOINTS):
        if isinstance(each.event, CheckpointCommitted):
            committed.setdefault(each.event.path, []).append(each.event)
    generation, version, chain = spine.generation, spine.version, []
    while generation >= 0:
        start = starts[generation]
        chain += [steps.get(generation, {}).get(step) for step in range(version, start.version, -1)]
        if not start.checkpoint:
            break
        sources = [each for each in committed.get(start.checkpoint, []) if each.step == start.version]
        sources = [each for each in sources if each.generation < generation]
        if not sources:
            yield f"generation {generation} took up a checkpoint that nobody committed: {start.checkpoint}"
            return
        version, generation = start.version, max(each.generation for each in sources)
    if None in chain:
        yield f"a step of the chain that ends at {spine.version}/{spine.generation} was never executed"
        return
    found = [(each.step, each.batch) for each in reversed(chain) if each is not None]
    wanted = [(step, plans.get(step)) for step in range(1, spine.version + 1)]
    if found != wanted:
        yield f"the chain executes {found}, the plans are {wanted}"


def whole(world: World) -> Iterator[str]:
    """I8: every checkpoint that the log shows is on disk as it was committed, unless it was damaged on purpose."""
    if world.state.spine.kept is not Kept.HERE:
        return
    for (step, generation), event in world.state.checkpoints.items():
        newest = max(key for key, other in world.state.checkpoints.items() if other.path == event.path)
        if Path(event.path) in world.chaos.damaged or (step, generation) != newest:
            continue
        if not world.state.spine.made(step, generation, event.checksum):
            continue  # an announcement without its step has no effect
        try:
            checkpoints.verify(Path(event.path), event.files)
        except RftdError as error:
            yield f"step {step} of generation {generation}: {error.what}"


def lost_in_vain(world: World, worker: WorkerStarted, why: str) -> str | None:
    """I7: what to say if a worker is declared lost that lives, and that nothing kept from saying so. Asked at once."""
    process = next(each for each in world.machine.workers if each.pid == worker.pid)
    weather, now_s = world.scenario.weather, world.loop.time()
    late = weather.slow_p > 0.0 or world.scenario.mode != "zombies" or now_s < world.chaos.late_until_s
    slow = weather.slow_s > LOST_AFTER_S / 2 and late
    excused = weather.embedded or slow or process.disturbed_s + 2 * LOST_AFTER_S > now_s
    if not process.running or excused:
        return None
    return f"{process.name} was declared lost at {now_s:.1f} s and lives: {why}"


def heard(world: World) -> Iterator[str]:
    """Nobody announces what nobody hears: what the log says last of each version is what everybody goes by."""
    said: dict[tuple[int, int], str] = {}
    seen: set[UUID] = set()
    for decoded in effective(world, topics.WEIGHTS):
        event = decoded.event
        if decoded.head.experiment != world.experiment or decoded.head.id in seen:
            continue
        seen.add(decoded.head.id)
        if isinstance(event, WeightsPublished):
            said[event.version, event.generation] = event.path
        elif isinstance(event, WeightsRetired):
            said.pop((event.version, event.generation), None)
    weights = world.state.weights
    taken = {key: weights.published[key].path for key in weights.standing}
    for key in sorted(said.keys() | taken.keys()):
        if said.get(key) != taken.get(key):
            yield f"version {key[0]} of generation {key[1]} is {said.get(key)}, and everybody reads {taken.get(key)}"


def nothing_uncaught(world: World) -> Iterator[str]:
    """No process met an error that nobody had thought of."""
    yield from world.loop.errors


ORACLES: tuple[Callable[[World], Iterator[str]], ...] = (
    ended,
    balanced,
    acknowledged,
    fenced,
    obeyed,
    confluent,
    lineage,
    ranked,
    patient,
    whole,
    heard,
    nothing_uncaught,
    *(oracle for kind in KINDS for oracle in kind.oracles),
)


async def recomputed(world: World) -> list[str]:
    """I6: the weights of every step follow from the log alone."""
    spec, state = world.spec, world.state
    engine, stage = FakeTrainerEngine(), -1
    engine.open(spec, spec.stages[0].model.path)
    assembly = Assembly(world.log, spec)
    checksums: dict[int, set[str]] = {}
    for (step, _), checksum in state.spine.checksums.items():
        checksums.setdefault(step, set()).add(checksum)
    partition = partition_of(topics.EXPERIMENTS, world.experiment)
    for step in range(1, state.spine.furthest + 1):
        offset = state.spine.plan_offsets.get(step)
        if offset is None:
            return [f"step {step} was executed and has no plan"]
        plan = decode_as(world.log.stored(partition, offset, 1)[0], BatchPlanned)
        if plan.stage != stage:
            stage = plan.stage
            engine.begin_stage(spec.stages[stage])
        engine.train(await assembly.batch(plan, state.spine.first_versions[stage]))
        if checksums.get(step) != {engine.checksum()}:
            return [f"step {step} has weights {checksums.get(step)}, its plans give {engine.checksum()}"]
    return []


def digest(state: RunState) -> dict[str, str]:
    """Everything that decisions rest on, as text, without the order of what has none."""
    parts = ("spine", "groups", "replay_buffer", "weights", "evals", "roster", "committed")
    return {name: _plain(getattr(state, name)) for name in parts}


def _plain(value: Any) -> str:
    kind = type(value)
    if kind is dict or kind is Counter:
        return "{" + ", ".join(sorted(f"{_plain(key)}: {_plain(item)}" for key, item in value.items())) + "}"
    if kind in (set, frozenset):
        return "{" + ", ".join(sorted(map(_plain, value))) + "}"
    if kind in (list, tuple):
        return "(" + ", ".join(map(_plain, value)) + ")"
    if kind.__module__.startswith("rftd.streams.folds") and isinstance(value, msgspec.Struct):
        return _plain({name: getattr(value, name) for name in value.__struct_fields__})
    return repr(value)


def _differences(one: dict[str, str], other: dict[str, str]) -> Iterator[str]:
    for name, text in one.items():
        if text != other[name]:
            at = next((i for i, (a, b) in enumerate(zip(text, other[name], strict=False)) if a != b), 0)
            yield f"{name} differs: ...{text[max(0, at - 80) : at + 80]} | ...{other[name][max(0, at - 80) : at + 80]}"
