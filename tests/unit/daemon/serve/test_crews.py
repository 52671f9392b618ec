"""The choice of workers that nobody ordered: as long as there is one of each role, some experiment has both."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from rftd.daemon.serve.external_worker import Crew, choose, stranded

PARENT = UUID(int=1)
FORK = UUID(int=2)
RUNS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4)


class Town:
    """Experiments that are under way, and workers that are somewhere, or stand by."""

    def __init__(self, runs: list[tuple[bool, bool]], places: dict[str, list[int | None]]) -> None:
        self.runs = runs
        self.places = {role: [at if at is None or at < len(runs) else None for at in of] for role, of in places.items()}

    def crews(self) -> list[Crew]:
        return [
            Crew(UUID(int=at), *run, *(self.places[role].count(at) for role in ("trainer", "explorer")))
            for at, run in enumerate(self.runs)
        ]

    def settle(self, role: str) -> bool:
        """Whoever stands by or is stranded goes where it is of use; True if anybody went elsewhere."""
        moved = False
        for worker, at in enumerate(self.places[role]):
            leaves = at is not None and stranded(role, UUID(int=at), self.crews())
            if at is None or leaves:
                self.places[role][worker] = None
                chosen = choose(role, self.crews())
                self.places[role][worker] = chosen.int if chosen is not None else None
                moved = moved or leaves or chosen is not None
        return moved

    def goes_on(self) -> bool:
        return any(each.running and each.trainers and (each.explorers or not each.explores) for each in self.crews())


def places(least: int = 1) -> st.SearchStrategy[list[int | None]]:
    return st.lists(st.none() | st.integers(0, 3), min_size=least, max_size=4)


@given(RUNS, places(), places())
def test_some_experiment_that_runs_has_both(
    runs: list[tuple[bool, bool]], trainers: list[int | None], explorers: list[int | None]
) -> None:
    town = Town(runs, {"trainer": trainers, "explorer": explorers})
    rounds = 0
    while town.settle("trainer") | town.settle("explorer"):
        rounds += 1
        assert rounds < 20, "they go round in circles"
    assert town.goes_on() or not any(running for running, _ in runs)


@given(RUNS, places(0), places(0))
def test_nobody_leaves_an_experiment_that_goes_on(
    runs: list[tuple[bool, bool]], trainers: list[int | None], explorers: list[int | None]
) -> None:
    town = Town(runs, {"trainer": trainers, "explorer": explorers})
    for each in town.crews():
        if each.running and each.trainers and (each.explorers or not each.explores):
            assert not stranded("trainer", each.experiment, town.crews())
        if each.running and each.trainers and each.explores:
            assert not stranded("explorer", each.experiment, town.crews())


def test_a_trainer_goes_to_explorers_that_wait_for_one_and_they_stay() -> None:
    crews = [Crew(PARENT, True, True, 0, 2), Crew(FORK, True, True, 1, 0)]
    assert stranded("trainer", FORK, crews)
    assert choose("trainer", [crews[0], Crew(FORK, True, True, 0, 0)]) == PARENT
    assert not stranded("explorer", PARENT, [Crew(PARENT, True, True, 1, 2), Crew(FORK, True, True, 0, 0)])


def test_explorers_share_themselves_out_and_leave_alone_what_has_no_work_for_them() -> None:
    rows = Crew(FORK, True, explores=False, trainers=1)
    assert choose("explorer", [Crew(PARENT, True, True, 1, 2), rows]) == PARENT
    assert choose("explorer", [rows]) is None
    assert choose("explorer", [Crew(PARENT, True, True, 1, 2), Crew(FORK, True, True, 0, 1)]) == FORK


def test_of_two_without_a_trainer_one_takes_the_one_that_can_go_on() -> None:
    assert choose("trainer", [Crew(PARENT, True, True), Crew(FORK, True, True, 0, 1)]) == FORK
    assert choose("trainer", [Crew(PARENT, False, True, 0, 1), Crew(FORK, True, False)]) == FORK
    assert choose("trainer", [Crew(PARENT, False, True, 0, 1)]) == PARENT
    assert choose("trainer", [Crew(PARENT, True, True, 1)]) is None
