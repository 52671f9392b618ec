"""Clients that repeat questions and branch conversations: each answer is trained once, after its own prompt."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
from numpy.typing import NDArray

from rftd.streams.events.experience import ExperienceProduced
from rftd.streams.events.task import TaskLeased
from rftd.workers.generation.response import Response
from simulator.kinds.foreigners import FOREIGNER
from simulator.kinds.kind import Kind
from simulator.readings import effective

if TYPE_CHECKING:
    from simulator.scenario import Scenario
    from simulator.world import World


class Habits(msgspec.Struct, frozen=True):
    """How often clients repeat a question, or ask another one in its place too."""

    repeat_p: float
    branch_p: float


class Sequenced(NamedTuple):
    """One sequence of an experience."""

    tokens: list[int]
    trained: list[int]
    """1 for each of the tokens that is trained."""


def drawn_once(world: World) -> Iterator[str]:
    """Each answer of a run is trained in one sequence of its experience, after its prompt, and nothing else is."""
    if "served" not in world.scenario.extras:
        return
    answers = _answers(world)
    events = [each.event for each in effective(world) if each.head.source != FOREIGNER]
    rows = {event.group: event.row for event in events if isinstance(event, TaskLeased)}
    for event in events:
        if not isinstance(event, ExperienceProduced):
            continue
        place = (rows[event.group], event.rollout)
        drawn = answers.get(place, [])
        sequences = list(_sequences(event))
        for response in drawn:
            if not any(_trains(sequence, response) for sequence in sequences):
                yield f"an answer of the run at {place} is not trained: {response.text!r}"
        trained = sum(sum(sequence.trained) for sequence in sequences)
        if trained != (wanted := sum(len(response.tokens) for response in drawn)):
            yield f"of the run at {place} {trained} tokens are trained, and {wanted} were drawn"


class BranchingClients(Kind):
    """Strangers who are not content with one answer, and go on from several."""

    name: ClassVar[str] = "branching clients"
    share: ClassVar[float] = 0.5
    modes: ClassVar[tuple[str, ...]] = ("served",)
    oracles = (drawn_once,)

    def draw(self, scenario: Scenario, chance: random.Random) -> Any:
        """How often they do which."""
        return Habits(chance.choice([0.0, 0.2, 0.5]), chance.choice([0.1, 0.3, 0.6]))

    def begin(self, world: World, plot: Habits) -> None:
        """Tells the strangers, who are there already."""
        sim_clients = world.extras["served"]
        sim_clients.repeat_p = plot.repeat_p
        sim_clients.branch_p = plot.branch_p


def _sequences(event: ExperienceProduced) -> Iterator[Sequenced]:
    tokens: NDArray[Any] = event.tokens.view()
    mask: NDArray[Any] = event.loss_mask.view()
    lengths: Sequence[tuple[int, int]] = [(step.tokens, step.prompt_tokens) for step in event.steps]
    for length, prompt_tokens in lengths or [(len(tokens), event.prompt_tokens)]:
        drawn = length - prompt_tokens
        yield Sequenced(tokens[:length].tolist(), [0] * prompt_tokens + mask[:drawn].tolist())
        tokens = tokens[length:]
        mask = mask[drawn:]


def _trains(sequence: Sequenced, response: Response) -> bool:
    """True if the sequence begins with the answer and its prompt, and trains all of the answer."""
    begun = len(response.prompt)
    ids = [*response.prompt, *response.tokens]
    return sequence.tokens[: len(ids)] == ids and all(sequence.trained[begun : len(ids)])


def _answers(world: World) -> dict[tuple[int, int], list[Response]]:
    """The answers of each committed run as the history has them, by its row and its place there."""
    taskset = world.spec.stages[0].taskset
    assert taskset is not None
    found: dict[tuple[int, int], list[Response]] = {}
    path = Path(taskset.path) / "history.db"
    if path.exists():
        with closing(sqlite3.connect(path)) as read:
            query = "SELECT row, place, response FROM answers JOIN runs ON run = runs.number WHERE row IS NOT NULL"
            for row, place, blob in read.execute(query):
                found.setdefault((row, place), []).append(msgspec.msgpack.decode(blob, type=Response))
    return found
