"""Bugs of trainers and explorers, and of fences that do not hold them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec

from rftd.daemon.serve import external_worker
from rftd.ops.errors import ConfigError, RankError, RftdError
from rftd.ops.ids import derive
from rftd.storage.files.checkpoints import Staged
from rftd.streams.events.experiment import ExperimentWarned, Fence
from rftd.streams.folds.groups import GroupFold
from rftd.streams.folds.weights import Weights
from rftd.streams.log.fencing import FenceView, Role
from rftd.streams.log.role import RoleLease
from rftd.streams.log.writers import holder_source
from rftd.workers import process
from rftd.workers.control import leasing
from rftd.workers.engines.ranks.controller import RankedEngine
from rftd.workers.rollout import leased
from rftd.workers.training import history, loop, publishing, saving
from simulator.bugs.bug import Bug, instead
from simulator.engines import SimTrainerEngine
from simulator.kinds.lost_ranks import LostRanks, Mishap
from simulator.loop import PROCESS


def _admit_all(admit: Any) -> Any:
    def admitting(self: FenceView, partition: Any, head: Any, event: Any) -> bool:
        return admit(self, partition, head, event) or bool(head.role)

    return admitting


def _admit_any_source(admit: Any) -> Any:
    """Whoever writes under a role is taken for its owner."""

    def admitting(self: FenceView, partition: Any, head: Any, event: Any) -> bool:
        owner = event.owner if isinstance(event, Fence) else self.owner(partition, Role(head.experiment, head.role))
        if head.role and owner is not None:
            head = msgspec.structs.replace(head, source=holder_source(head.role, owner))
        return bool(admit(self, partition, head, event))

    return admitting


def _admit_all_to_explorers(admit: Any) -> Any:
    def admitting(self: FenceView, partition: Any, head: Any, event: Any) -> bool:
        process = PROCESS.get(None)
        admitted: bool = admit(self, partition, head, event)
        return admitted or (process is not None and process.role == "explorer")

    return admitting


def _lease_under_an_id_of_its_own(next_lease: Any) -> Any:
    """So that a lease that has no effect is not, by its id, the one that the successor gives."""

    def named(*args: Any, **more: Any) -> Any:
        decision = next_lease(*args, **more)
        lease = derive(decision.event.lease, PROCESS.get().pid)
        return decision._replace(event=msgspec.structs.replace(decision.event, lease=lease))

    return named


@contextmanager
def _obey_anybody() -> Iterator[None]:
    obeys = instead(FenceView, "admit", _admit_all_to_explorers)
    names = instead(leasing, "next_lease", _lease_under_an_id_of_its_own)
    with obeys(), names():
        yield


def _warn_under_the_next_epoch(acquire: Any) -> Any:
    """The controller writes one record of an epoch that no fence began."""

    async def acquiring(log: Any, follower: Any, *, role: Any, **more: Any) -> Any:
        lease = await acquire(log, follower, role=role, **more)
        if role.name == "controller":
            writer = lease.writer.under(role=role.name, epoch=lease.writer.epoch + 1)
            with suppress(RftdError):
                await log.append([writer.draft(ExperimentWarned(text="of another epoch"), experiment=role.experiment)])
        return lease

    return acquiring


def _skip_training(train: Any) -> Any:
    def training(self: SimTrainerEngine, batch: Any) -> Any:
        before = self._state
        result = train(self, batch)
        if batch.step == 2 and PROCESS.get().start_s > 1.0:  # not in the first trainer: in one that takes up a history
            self._state = before
        return result

    return training


def _train_twice(train: Any) -> Any:
    def training(self: SimTrainerEngine, batch: Any) -> Any:
        if batch.step == 2:
            train(self, batch)
        return train(self, batch)

    return training


def _announce_without_files(place_folder: Any) -> Any:
    def placing(staged: Staged, folder: Path) -> None:
        place_folder(staged, folder)
        (folder / staged.files[0].path).unlink()

    return placing


def _announce_other_weights(committed: Any) -> Any:
    return lambda **fields: committed(**{**fields, "checksum": fields["checksum"] if fields["final"] else "0" * 32})


def _name_another_checkpoint(started: Any) -> Any:
    return lambda **fields: started(**{**fields, "checkpoint": fields["checkpoint"] and f"{fields['checkpoint']}0"})


def _fail_oddly(verify: Any) -> Any:
    def verifying(folder: Path, files: Any) -> None:
        try:
            verify(folder, files)
        except Exception as error:
            raise KeyError(str(folder)) from error

    return verifying


def _believe_whoever_answers(_answer: Any) -> Any:
    def answered(self: GroupFold, group: Any, rollout: int, end: Any) -> None:
        self._count_end(group, rollout, end)

    return answered


def _name_another_lease(experience_of: Any) -> Any:
    """Of some rollouts, whichever worker makes them."""

    def made(id: UUID, lease: Any, *more: Any) -> Any:
        named = msgspec.structs.replace(lease, lease=derive(lease.lease, "other")) if id.int % 4 == 0 else lease
        return experience_of(id, named, *more)

    return made


def _hear_of_it_once(publish: Any) -> Any:
    def published(self: Weights, event: Any, head: Any) -> None:
        if (event.version, event.generation) not in self.retired:
            publish(self, event, head)

    return published


def _drifting(method: str, *numbers: int) -> Any:
    """Has rank 0 drift in these calls in every world that has ranks: by chance they seldom do."""
    usual = LostRanks.draw

    def draw(self: LostRanks, scenario: Any, chance: Any) -> Any:
        mishaps = tuple(Mishap(method=method, nth=nth, rank=0, how="drift") for nth in numbers)
        return msgspec.structs.replace(usual(self, scenario, chance), mishaps=mishaps)

    return mock.patch.object(LostRanks, "draw", draw)


def _believe_rank_0() -> Any:
    def same(_self: RankedEngine, _answers: Any, _method: str, *, shown: bool) -> None:
        return

    stack = ExitStack()
    stack.enter_context(mock.patch.object(RankedEngine, "_require_same", same))
    stack.enter_context(_drifting("train", 1))
    return stack


def _announce_whatever_was_copied() -> Any:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(publishing, "trained_checksum", lambda _step, _exported, **_: ""))
    stack.enter_context(_drifting("checksum", 2))
    return stack


def _save_whatever_is_there() -> Any:
    stack = ExitStack()
    stack.enter_context(mock.patch.object(saving, "check_saved", lambda *_: None))
    stack.enter_context(_drifting("snapshot", 2, 3, 4, 5, 6))
    return stack


def _blame_the_experiment(first: Any) -> Any:
    def blaming(group: Any) -> RftdError:
        error: RftdError = first(group)
        return ConfigError(error.what) if isinstance(error, RankError) else error

    return blaming


BUGS = (
    Bug(
        "ranks that drifted apart train on",
        "recomputed",
        _believe_rank_0,
        within_seeds=200,
    ),
    Bug(
        "weights that drifted after their checksum are announced",
        "liveness",
        _announce_whatever_was_copied,
        within_seeds=200,
    ),
    Bug(
        "weights that drifted after their step are saved",
        "verify: announcements-have-a-step",
        _save_whatever_is_there,
        within_seeds=200,
    ),
    Bug(
        "a lost rank is a fault of the experiment",
        "lost ranks",
        instead(process, "_first", _blame_the_experiment),
        within_seeds=200,
    ),
    Bug(
        "a role writes under an epoch that no fence began",
        "verify: fences-come-first",
        instead(RoleLease, "acquire", _warn_under_the_next_epoch),
    ),
    Bug(
        "a worker that nobody ordered stays where it has nothing to do",
        "liveness",
        instead(external_worker, "stranded", lambda _stranded: lambda *_: False),
        within_seeds=400,
    ),
    Bug(
        "whoever writes as a role is believed",
        "ended: failed",
        instead(FenceView, "admit", _admit_any_source),
        within_seeds=200,
    ),
    Bug("a fence admits all", "fenced", instead(FenceView, "admit", _admit_all), mode="zombies"),
    Bug(
        "an explorer obeys whoever gives it work",
        "obeyed",
        _obey_anybody,
        mode="zombies",
    ),
    Bug(
        "a trainer skips a plan when it takes the history up",
        "recomputed",
        instead(SimTrainerEngine, "train", _skip_training),
    ),
    Bug("a batch is trained twice", "recomputed", instead(SimTrainerEngine, "train", _train_twice)),
    Bug(
        "a checkpoint is announced and a file of it is not there",
        "whole",
        instead(saving, "place_folder", _announce_without_files),
    ),
    Bug(
        "a checkpoint names other weights",
        "verify: announcements-have-a-step",
        instead(saving, "CheckpointCommitted", _announce_other_weights),
    ),
    Bug(
        "what was retired is never heard of again",
        "heard",
        instead(Weights, "_fold_publication", _hear_of_it_once),
        within_seeds=900,
    ),
    Bug(
        "a generation names a checkpoint that nobody committed",
        "lineage",
        instead(loop, "GenerationStarted", _name_another_checkpoint),
    ),
    Bug(
        "whoever answers is believed",
        "foreign_records_count_for_nothing",
        instead(GroupFold, "_answer", _believe_whoever_answers),
        within_seeds=200,
    ),
    Bug(
        "an explorer answers a lease that nobody gave",
        "verify: answers-have-a-lease",
        instead(leased, "experience_of", _name_another_lease),
    ),
    Bug("damage is met with an error that nobody expects", "nothing_uncaught", instead(history, "verify", _fail_oddly)),
)
