"""`sample_strategy: mix`: rows of an expert's dataset beside the experiences of each batch."""

from __future__ import annotations

from math import ceil

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.issue import WrongValue
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.resolve.tasksets import rows_of
from rftd.daemon.config.schema.experiment import Experiment
from rftd.streams.spec import AlgorithmSpec, TasksetSpec

_ARGS: FieldPath = ("algorithm", "sample_strategy_args")
_BUFFERS: FieldPath = ("buffer", "trainer_input", "auxiliary_buffers")


def resolve_mix(
    experiment: Experiment, algorithm: AlgorithmSpec, train_batch: int, notes: Notes
) -> tuple[TasksetSpec | None, int]:
    """The expert's dataset and how many items of a batch are its rows: ceil(ratio * batch); none without `mix`."""
    buffers = experiment.buffer.trainer_input.auxiliary_buffers
    name = algorithm.sample_strategy_args.get("sft_dataset_name", "sft_dataset")
    mixes = algorithm.sample_strategy == "mix"
    if not isinstance(name, str):
        notes.wrong((*_ARGS, "sft_dataset_name"), f"is {name!r}", "write the name of an auxiliary buffer", WrongValue)
        return None, 0
    if unused := [each for each in buffers if not (mixes and each == name)]:
        notes.warn(f"auxiliary_buffers.{unused[0]} has no effect: no sample_strategy takes rows of it")
    if not mixes:
        return None, 0
    ratio = algorithm.sample_strategy_args.get("expert_data_ratio", 0.5)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1:
        what = f"is {ratio!r}: each batch needs items of both kinds"
        notes.wrong((*_ARGS, "expert_data_ratio"), what, "set it between 0 and 1, such as 0.5", WrongValue)
        return None, 0
    rows = ceil(ratio * train_batch)
    if rows >= train_batch:
        what = f"is {ratio}: of {train_batch} items of a batch {rows} are an expert's, and none is explored"
        notes.wrong((*_ARGS, "expert_data_ratio"), what, "lower it, or raise buffer.train_batch_size")
        return None, 0
    if name not in buffers:
        known = ", ".join(buffers) or "none"
        what = (
            f"sample_strategy mix takes its expert's rows from {name!r}, and there is no such buffer (given: {known})"
        )
        notes.wrong(_BUFFERS, what, f"set buffer.trainer_input.auxiliary_buffers.{name}.path")
        return None, 0
    return rows_of(buffers[name], (*_BUFFERS, str(name)), experiment.seed, notes, name=str(name)), rows
