"""What happens in a world: everything that its seed decides, before it begins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rftd.ops.faults import POINTS
from rftd.streams.memory import MemoryFaults
from simulator.kinds import KINDS
from simulator.kinds.kind import draw_kinds
from simulator.network import Weather
from simulator.shape import Shape, draw_driven, draw_patient, draw_policy, draw_shape, draw_slow

Mode = Literal["swarm", "zombies", "served", "piped"]
ROLES: Final = ("daemon", "trainer", "explorer")
FILE_POINTS: Final = ("file.fsync", "file.rename", "file.replace", "file.mkdir")
POINTS_OF: Final = {
    "daemon": tuple(
        sorted(p for p in POINTS if p.partition(".")[0] in ("fence", "planner", "dispatcher", "controller"))
    ),
    "trainer": tuple(sorted(p for p in POINTS if p.partition(".")[0] in ("fence", "trainer", "weights", "checkpoint"))),
    "explorer": ("explorer.before_append", "explorer.after_append"),
}
SECONDS_TO_FINISH: Final = 900.0
"""Of virtual time, once the last fault is over (I20)."""


@dataclass(frozen=True)
class Strike:
    """Something that happens to a process: at a time, or when it passes a point for the n-th time."""

    kind: Literal["kill", "stop", "cut", "drain", "damage", "litter"]
    role: str
    at_s: float = 0.0
    point: str = ""
    nth: int = 1
    for_s: float = 0.0


@dataclass(frozen=True)
class Command:
    """What the owner of the experiment wants, and when."""

    verb: Literal["pause", "resume", "cancel"]
    at_s: float


@dataclass
class Scenario:
    """One world's script."""

    seed: int
    mode: Mode
    shape: Shape
    weather: Weather
    faults: MemoryFaults
    calm_s: float
    """From here on nothing goes wrong any more."""
    external: bool
    """Workers are started by somebody else, on other machines; else by the daemon, on its own."""
    trainers: int
    """External ones; more than one stand by."""
    takeover_s: float
    """A second daemon is started once none answered for so long."""
    strikes: list[Strike] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    fork_at_s: float | None = None
    """From when on the owner wants a fork of it."""
    fork_step: int = 0
    tags: list[float] = field(default_factory=list)
    """When the owner changes the priority of a group, whichever waits, rests or is under way then."""
    fail_p: float = 0.0
    hang_p: float = 0.0
    salted: bool = False
    skew_s: float = 0.0
    """Clocks of processes differ by as much."""
    step_s: float = 0.1
    """What work on a thread takes, on the mean."""
    extras: dict[str, Any] = field(default_factory=dict)
    """What the kinds of `simulator/kinds` do in this world, by name."""


def draw(seed: int, mode: Mode = "swarm") -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(f"{mode} {seed}")
    scenario = _zombies(seed, chance) if mode == "zombies" else _swarm(seed, chance, mode)
    draw_kinds(KINDS, scenario)
    return scenario


def _swarm(seed: int, chance: random.Random, mode: Mode) -> Scenario:
    """A random subset of the faults, each at a random rate."""

    def on(share: float = 0.4) -> bool:
        return chance.random() < share

    shape = draw_shape(chance)
    weather = Weather(
        latency_s=chance.choice([0.001, 0.005, 0.02]),
        slow_p=chance.choice([0.02, 0.1]) if on() else 0.0,
        slow_s=chance.choice([1.0, 4.0, 20.0]),
        stale_p=chance.choice([0.2, 0.6]) if on() else 0.0,
        grace_s=chance.choice([0.0, 2.0, 10.0, 10.0]),
        embedded=on(0.5),
    )
    faults = MemoryFaults(
        seed=seed,
        fail_p=chance.choice([0.01, 0.1]) if on() else 0.0,
        unknown_p=chance.choice([0.01, 0.1]) if on() else 0.0,
        duplicate_p=chance.choice([0.05, 0.5]) if on() else 0.0,
        repeat_p=chance.choice([0.02, 0.2]) if on(0.25) and not weather.embedded else 0.0,
    )
    calm_s = chance.choice([5.0, 20.0, 60.0])
    scenario = Scenario(
        seed=seed,
        mode=mode,
        shape=shape,
        weather=weather,
        faults=faults,
        calm_s=calm_s,
        external=on(0.3),
        trainers=chance.randint(1, 2),
        takeover_s=chance.choice([1.0, 10.0, 30.0]),
        fail_p=chance.choice([0.02, 0.1]) if on(0.3) else 0.0,
        hang_p=0.01 if on(0.2) else 0.0,
        salted=not shape.deterministic and on(0.4),
        skew_s=chance.choice([0.0, 0.0, 5.0, 3600.0]),
        step_s=chance.choice([0.01, 0.1, 0.5]),
    )
    kinds = [kind for kind in ("kill", "kill at a point", "stop", "stop at a point", "cut", "drain", "damage") if on()]
    for kind in kinds:
        for _ in range(chance.randint(1, 3)):
            scenario.strikes += _strikes(kind, chance, calm_s)
    _command(scenario, chance)
    forks = random.Random(f"fork {seed}")  # of its own, so that worlds without one stay what they were
    if forks.random() < 0.12:
        scenario.fork_at_s = forks.uniform(2.0, calm_s)
        scenario.fork_step = forks.randint(0, 4)
    driven = random.Random(f"both sides {seed}")
    if driven.random() < 0.25:
        scenario.shape = draw_driven(shape, driven)
    slow = random.Random(f"slow {seed}")
    if slow.random() < 0.25:
        scenario.shape = draw_slow(scenario.shape, slow)
    policies = random.Random(f"policy {seed}")
    if policies.random() < 0.3:
        scenario.shape = draw_policy(scenario.shape, policies)
    patience = random.Random(f"patience {seed}")
    if patience.random() < 0.25:
        scenario.shape = draw_patient(scenario.shape, patience)
    tags = random.Random(f"tags {seed}")
    if tags.random() < 0.25:
        scenario.tags = sorted(tags.uniform(0.5, min(calm_s, 20.0)) for _ in range(tags.randint(2, 6)))
    return scenario


def _strikes(kind: str, chance: random.Random, calm_s: float) -> list[Strike]:
    role, at_s = chance.choice(ROLES), chance.uniform(0.2, calm_s)
    short_s = chance.choice([0.5, 3.0, 12.0])
    long_s = chance.choice([1.0, 18.0, 40.0])
    points = POINTS_OF[role] + (FILE_POINTS if role == "trainer" else ())
    point, nth = chance.choice(points), chance.choice([1, 1, 2, 3, 5])
    match kind:
        case "kill":
            return [Strike("kill", role, at_s=at_s)]
        case "kill at a point":
            return [Strike("kill", role, point=point, nth=nth)]
        case "stop":
            return [Strike("stop", role, at_s=at_s, for_s=long_s)]
        case "stop at a point":
            return [Strike("stop", role, point=point, nth=nth, for_s=long_s)]
        case "cut":
            return [Strike("cut", role, at_s=at_s, for_s=short_s)]
        case "drain":
            return [Strike("drain", "daemon", at_s=at_s)]
        case _:  # a damaged checkpoint is noticed by the next trainer
            first = Strike(chance.choice(["damage", "damage", "litter"]), "trainer", at_s=at_s)
            return [first, Strike("kill", "trainer", at_s=at_s + chance.uniform(0.0, 0.5))]


def _command(scenario: Scenario, chance: random.Random) -> None:
    if chance.random() < 0.25:
        at_s = chance.uniform(0.5, scenario.calm_s)
        scenario.commands += [Command("pause", at_s), Command("resume", at_s + chance.choice([0.5, 3.0, 20.0]))]
    if chance.random() < 0.05:
        scenario.commands.append(Command("cancel", chance.uniform(1.0, scenario.calm_s + 5.0)))


def _zombies(seed: int, chance: random.Random) -> Scenario:
    """Nothing but trainers and daemons that are stopped, replaced, and wake again."""
    scenario = Scenario(
        seed=seed,
        mode="zombies",
        shape=draw_shape(chance),
        weather=Weather(latency_s=0.005, slow_p=chance.choice([0.0, 0.05]), stale_p=chance.choice([0.0, 0.3])),
        faults=MemoryFaults(seed=seed),
        calm_s=90.0,
        external=True,
        trainers=2,
        takeover_s=chance.choice([1.0, 5.0]),
        salted=chance.random() < 0.5,
        step_s=chance.choice([0.05, 0.3]),
    )
    scenario.weather.slow_s = chance.choice([2.0, 30.0])
    for _ in range(chance.randint(1, 3)):
        role = chance.choice(["daemon", "trainer", "trainer"])
        for_s = chance.choice([17.0, 25.0, 45.0])
        if chance.random() < 0.7:
            points = POINTS_OF[role] + (FILE_POINTS if role == "trainer" else ())
            strike = Strike("stop", role, point=chance.choice(points), nth=chance.choice([1, 1, 2, 3]), for_s=for_s)
        else:
            strike = Strike("stop", role, at_s=chance.uniform(0.5, 12.0), for_s=for_s)
        scenario.strikes.append(strike)
    return scenario
