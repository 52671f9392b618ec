"""`RankedEngine`: a trainer engine of several processes (ranks), each with a complete engine; every call is made on all
ranks.

Rank 0's answer is returned. Answers that must be equal on all ranks (digests, the result of a step, the environment)
are compared, and a difference ends all ranks: weights that drifted apart must not be saved.
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
from rftd.workers.engines.ranks.sight import check_job_folder, require_same_facts
from rftd.workers.engines.ranks.spool import SpooledSnapshot, new_spool, write_part_of
from rftd.workers.learning.engine import StepResult, TrainBatch

_WAIT_SHARE: Final = 0.75
"""Share of a call's time after which ranks stop waiting for one another, so that they report the failure themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """Description of a ranked engine's processes."""

    maker: str
    """Function creating a rank's engine from its `RankPlace`, as `module:function`."""
    ranks: int
    """Number of ranks on all machines."""
    trainer: TrainerSpec
    """Trainer of the specification, passed to each rank."""
    threads: int
    """Number of threads of each rank."""
    backend: str = "gloo"
    """Backend of torch.distributed: `gloo` or `nccl`; empty: none."""
    timeout_s: float = limits.RANK_CALL_TIMEOUT_S
    """Maximum seconds of one call."""


class RankedEngine:
    """Implements `TrainerEngine`, `RestingEngine`, `DigestingEngine` and `WatchedEngine` on several processes."""

    def __init__(self, plan: RankPlan, environ: Mapping[str, str] = os.environ) -> None:
        """Plans the ranks without starting them; `open` starts them.

        `environ` may contain the addresses of further machines, written by the launcher of a trainer on several.
        """
        self._plan = plan
        self._nodes = nodes_of(environ)
        self._crew: RankCrew | None = None
        """The running ranks; None before `open`."""
        self._rank_0_opened = RankDone()
        """Rank 0's answer to `open`; empty before."""
        self._job_dir = ""
        self._crew_decided = threading.Event()
        """Set once ranks are started, or `close` has ruled them out."""

    @property
    def deterministic(self) -> bool:
        """True if the ranks' engines are deterministic."""
        return self._rank_0_opened.deterministic

    def environment(self) -> dict[str, str]:
        """Returns the facts of software and devices that influence the weights' bits, with the number of ranks; after
        `open`.
        """
        return dict(self._rank_0_opened.facts)

    def pids(self) -> list[int]:
        """Returns the process ids by rank, each valid on its own node."""
        return self._open_crew.pids()

    def open(self, experiment: ExperimentSpec, model_path: str) -> None:
        """Starts the ranks, compares their releases and files, and opens the model on all.

        Raises RankError for differences between ranks, and the errors of a rank's engine.
        """
        plan = self._plan
        self._job_dir = experiment.job_dir
        nodes = self._nodes
        crew = RankCrew(plan.ranks, timeout_s=plan.timeout_s, nodes=nodes)
        self._crew = crew
        self._crew_decided.set()
        rank_places = [self._place_of(rank) for rank in range(plan.ranks)]
        with _marker_file(self._job_dir) as marker_path:
            looks = [
                LookCall(place=rank_place, experiment=experiment, model_path=model_path, left_in_job=marker_path)
                for rank_place in rank_places
            ]
            facts = [done.facts for done in crew.call(looks, "look")]
        self._end_ranks_on_error(lambda: check_job_folder(facts, self._job_dir))
        self._end_ranks_on_error(lambda: require_same_facts(facts))
        with socket.create_server((nodes.own, 0)) as store:
            join = JoinCall(
                backend=plan.backend,
                address=nodes.own,
                port=store.getsockname()[1],
                timeout_s=max(1.0, _WAIT_SHARE * plan.timeout_s),
            )
            crew.call(join, "join", {0: [store.fileno()]})
        opened = crew.call(OpenCall(experiment=experiment, model_path=model_path), "open")
        self._end_ranks_on_error(
            lambda: require_same_facts([done.facts for done in opened], difference="run in different environments")
        )
        self._rank_0_opened = opened[0]

    def begin_stage(self, stage: StageSpec) -> None:
        """Begins the stage on all ranks, each with a fresh optimizer."""
        self._open_crew.call(BeginCall(stage=stage), "begin_stage")

    def train(self, batch: TrainBatch) -> StepResult:
        """Trains a batch on all ranks; each rank receives the complete batch. Raises RankError if results differ."""
        rank_results = [done.result for done in self._open_crew.call(TrainCall.of(batch), "train")]
        # Compared by bytes, so that a NaN figure equals itself.
        self._require_same(
            [msgspec.msgpack.encode(rank_result).hex() for rank_result in rank_results], "train", shown=False
        )
        assert rank_results[0] is not None
        return rank_results[0]

    def checksum(self) -> str:
        """Returns the checksum of all weights. Raises RankError if the ranks' checksums differ."""
        return self._common_digest("checksum")

    def sha256(self) -> str:
        """Returns the ranks' sha256 digest. Raises RankError if the ranks' digests differ."""
        return self._common_digest("sha256")

    def digest_like(self, recorded: str) -> str:
        """Returns the weights' digest in the form of `recorded` (for example sha256), for comparison.

        Ranks unable to compute that form use their default form. Raises RankError if the ranks' digests differ.
        """
        return self._common_digest(recorded)

    def snapshot(self) -> SpooledSnapshot:
        """Returns a copy of the weights, written by all ranks into one unnamed file."""
        file = new_spool(self._job_dir)
        everyone = {rank: [file.fileno()] for rank in range(self._plan.ranks)}
        done = self._open_crew.call(SnapshotCall(), "snapshot", everyone, partial(write_part_of, file.fileno()))
        return SpooledSnapshot(file, exact=done[0].exact, tied=done[0].tied)

    def save(self, folder: Path, *, hf: bool) -> None:
        """Writes a checkpoint into the folder, each rank its part; with `hf`, Hugging Face's layout too."""
        self._open_crew.call(SaveCall(folder=str(folder), hf=hf), "save")

    def load(self, folder: Path, stage: StageSpec | None) -> None:
        """Loads a checkpoint on all ranks, whatever number of ranks wrote it; with the optimizer unless `stage` is
        None.
        """
        self._open_crew.call(LoadCall(folder=str(folder), stage=stage), "load")

    def rest(self) -> None:
        """Frees the devices' memory on all ranks whose engine supports it."""
        self._open_crew.call(RestCall(wake=False), "rest")

    def wake(self) -> None:
        """Occupies the devices' memory again on all ranks, with equal content."""
        self._open_crew.call(RestCall(wake=True), "wake")

    def watch(self) -> None:
        """Blocks until `close`. Raises RankError as soon as a rank ends."""
        self._crew_decided.wait()
        if self._crew is not None:
            self._crew.watch()

    def close(self) -> None:
        """Ends all ranks and wakes a blocked `watch`. Idempotent."""
        if self._crew is not None:
            self._crew.close()
        self._crew_decided.set()

    @property
    def _open_crew(self) -> RankCrew:
        """The running ranks. Raises AssertionError before `open`."""
        assert self._crew is not None, "used before open"
        return self._crew

    def _place_of(self, rank: int) -> RankPlace:
        """Returns the number, machine and engine settings of a rank, for its process."""
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

    def _common_digest(self, form: str) -> str:
        """Returns the digest on which all ranks agree. Raises RankError if they differ."""
        texts = [done.text for done in self._open_crew.call(DigestCall(form=form), "checksum")]
        self._require_same(texts, "checksum", shown=True)
        return texts[0]

    def _end_ranks_on_error(self, check: Callable[[], None]) -> None:
        """Runs a comparison of ranks; its RankError ends all ranks and is raised."""
        try:
            check()
        except RankError as error:
            self._open_crew.differ(error)

    def _require_same(self, answers: Sequence[str], method: str, *, shown: bool) -> None:
        """Ends all ranks with a RankError if answers to `method` differ; `shown` adds them to the message."""
        differing = [rank for rank, answer in enumerate(answers) if answer != answers[0]]
        if differing:
            rank = differing[0]
            shown_values = f": {answers[0]} on rank 0, {answers[rank]} on rank {rank}" if shown else ""
            self._open_crew.differ(
                RankError(
                    f"ranks 0 and {rank} of {len(answers)} differ in {method}{shown_values}",
                    fix="nothing: all ranks restart from the newest checkpoint",
                )
            )


@contextmanager
def _marker_file(folder: str) -> Iterator[str]:
    """Yields the path of a new temporary file in the folder; empty if the folder does not exist."""
    if not Path(folder).is_dir():
        yield ""
        return
    with NamedTemporaryFile(dir=folder, prefix=".ranks-") as file:
        yield file.name
