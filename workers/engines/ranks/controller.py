"""`RankedEngine`: a trainer engine of several processes, each of which has an engine of its own and makes every call.

Rank 0's answer is the answer. What must be equal on all ranks (digests, the result of a step, the environment) is
compared, and a difference is the end of all of them: weights that drifted apart must not be saved.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RankError
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TrainerSpec
from rftd.workers.engines.ranks.crew import RankCrew
from rftd.workers.engines.ranks.messages import (
    BeginCall,
    DigestCall,
    JoinCall,
    LoadCall,
    LookCall,
    OpenCall,
    RankDone,
    RankPlace,
    RestCall,
    SaveCall,
    SnapshotCall,
    TrainCall,
)
from rftd.workers.engines.ranks.nodes import nodes_of
from rftd.workers.engines.ranks.sight import check_alike, check_job_folder
from rftd.workers.engines.ranks.spool import SpooledSnapshot, new_spool, write_part_of
from rftd.workers.learning.engine import StepResult, TrainBatch

_WITHIN: Final = 0.75
"""The share of a call's time after which ranks give up waiting for one another: then they say so themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """The processes of an engine, and what each of them is."""

    maker: str
    """`module:function`, which makes the engine of one rank from its `RankPlace`."""
    ranks: int
    trainer: TrainerSpec
    threads: int
    """The threads of each rank."""
    backend: str = "gloo"
    """torch.distributed's: `gloo` or `nccl`; empty: the ranks need none."""
    timeout_s: float = limits.RANK_CALL_TIMEOUT_S
    """The longest that one call may take."""


class RankedEngine:
    """Implements `TrainerEngine`, `RestingEngine`, `DigestingEngine` and `WatchedEngine` for any engine of ranks."""

    def __init__(self, plan: RankPlan, environ: Mapping[str, str] = os.environ) -> None:
        """`environ` names the nodes beside this one, if the launcher gave the trainer more."""
        self._plan = plan
        self._nodes = nodes_of(environ)
        self._crew: RankCrew | None = None
        self._opened = RankDone()
        self._job_dir = ""
        self._begun = threading.Event()
        """Set when there are ranks, or never will be."""

    @property
    def deterministic(self) -> bool:
        """True if the ranks' engines say so."""
        return self._opened.deterministic

    def environment(self) -> dict[str, str]:
        """The environment of each rank, and how many there are."""
        return dict(self._opened.facts)

    def pids(self) -> list[int]:
        """The processes, by rank; each number is of its own node."""
        return self._running.pids()

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Starts the ranks, compares what they see, and has them open the model.

        Raises RankError if they see different things, beside what the engine of a rank raises.
        """
        plan = self._plan
        self._job_dir = experiment.job_dir
        nodes = self._nodes
        crew = RankCrew(plan.ranks, timeout_s=plan.timeout_s, nodes=nodes)
        self._crew = crew
        self._begun.set()
        places = [self._place(rank) for rank in range(plan.ranks)]
        with _file_in(self._job_dir) as left:
            looks = [
                LookCall(place=place, experiment=experiment, model_path=model_path, left_in_job=left)
                for place in places
            ]
            facts = [each.facts for each in crew.call(looks, "look")]
        self._check(lambda: check_job_folder(facts, self._job_dir))
        self._check(lambda: check_alike(facts))
        with socket.create_server((nodes.own, 0)) as store:
            join = JoinCall(
                backend=plan.backend,
                address=nodes.own,
                port=store.getsockname()[1],
                timeout_s=max(1.0, _WITHIN * plan.timeout_s),
            )
            crew.call(join, "join", {0: [store.fileno()]})
        opened = crew.call(OpenCall(experiment=experiment, model_path=model_path), "open")
        self._check(lambda: check_alike([each.facts for each in opened], what="run in different environments"))
        self._opened = opened[0]

    def begin_stage(self, stage: StageSpec) -> None:
        """Has all ranks begin the stage."""
        self._running.call(BeginCall(stage=stage), "begin_stage")

    def train(self, batch: TrainBatch) -> StepResult:
        """Has all ranks train the batch, which each is given whole. Raises RankError if their results differ."""
        results = [each.result for each in self._running.call(TrainCall.of(batch), "train")]
        # By their bytes: a figure that is not a number is equal to itself then.
        self._same([msgspec.msgpack.encode(each).hex() for each in results], "train", shown=False)
        assert results[0] is not None
        return results[0]

    def checksum(self) -> str:
        """The ranks' checksum, which is of all weights. Raises RankError if they differ."""
        return self._digest("checksum")

    def sha256(self) -> str:
        """The ranks' digest by sha256. Raises RankError if they differ."""
        return self._digest("sha256")

    def digest_like(self, recorded: str) -> str:
        """The digest in the form of one that was recorded; in their own where the ranks' engines make no other."""
        return self._digest(recorded)

    def snapshot(self) -> SpooledSnapshot:
        """The weights, written by all ranks into a file without a name."""
        file = new_spool(self._job_dir)
        everyone = {rank: [file.fileno()] for rank in range(self._plan.ranks)}
        done = self._running.call(SnapshotCall(), "snapshot", everyone, partial(write_part_of, file.fileno()))
        return SpooledSnapshot(file, exact=done[0].exact, tied=done[0].tied)

    def save(self, folder: Path, *, hf: bool) -> None:
        """Has all ranks write their parts into one folder."""
        self._running.call(SaveCall(folder=str(folder), hf=hf), "save")

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Has all ranks load a checkpoint, of however many ranks it is."""
        self._running.call(LoadCall(folder=str(folder), stage=stage), "load")

    def rest(self) -> None:
        """Has all ranks leave their devices' memory, where their engine can."""
        self._running.call(RestCall(wake=False), "rest")

    def wake(self) -> None:
        """Has all ranks take it back."""
        self._running.call(RestCall(wake=True), "wake")

    def watch(self) -> None:
        """Blocks until `close`. Raises RankError as soon as a rank ends."""
        self._begun.wait()
        if self._crew is not None:
            self._crew.watch()

    def close(self) -> None:
        """Ends all ranks. Idempotent."""
        if self._crew is not None:
            self._crew.close()
        self._begun.set()

    @property
    def _running(self) -> RankCrew:
        assert self._crew is not None, "used before open"
        return self._crew

    def _place(self, rank: int) -> RankPlace:
        plan = self._plan
        local_ranks = self._nodes.local_ranks(plan.ranks)
        return RankPlace(
            rank=rank,
            ranks=plan.ranks,
            maker=plan.maker,
            trainer=plan.trainer,
            threads=plan.threads,
            local_rank=rank % local_ranks,
            local_ranks=local_ranks,
            address=self._nodes.address_of(rank // local_ranks),
        )

    def _digest(self, form: str) -> str:
        texts = [each.text for each in self._running.call(DigestCall(form=form), "checksum")]
        self._same(texts, "checksum", shown=True)
        return texts[0]

    def _check(self, check: Callable[[], None]) -> None:
        try:
            check()
        except RankError as error:
            self._running.differ(error)

    def _same(self, answers: Sequence[str], method: str, *, shown: bool) -> None:
        others = [rank for rank, each in enumerate(answers) if each != answers[0]]
        if others:
            rank = others[0]
            values = f": {answers[0]} on rank 0, {answers[rank]} on rank {rank}" if shown else ""
            self._running.differ(
                RankError(
                    f"ranks 0 and {rank} of {len(answers)} differ in {method}{values}",
                    fix="nothing: all of them begin anew from the newest checkpoint",
                )
            )


@contextmanager
def _file_in(folder: str) -> Iterator[str]:
    """The path of a file that nobody else has, there within it; empty if the folder is not there."""
    if not Path(folder).is_dir():
        yield ""
        return
    with NamedTemporaryFile(dir=folder, prefix=".ranks-") as file:
        yield file.name
