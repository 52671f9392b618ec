"""One entry of `stages`: sections that are laid over the global ones."""

from __future__ import annotations

from rftd.daemon.config.schema.algorithm import Algorithm
from rftd.daemon.config.schema.buffer import Buffer
from rftd.daemon.config.schema.data_processor import DataProcessor
from rftd.daemon.config.schema.experiment_name import Mode, Name
from rftd.daemon.config.schema.explorer import Explorer
from rftd.daemon.config.schema.policy import Policy
from rftd.daemon.config.schema.section import Section
from rftd.daemon.config.schema.trainer import Trainer


class Stage(Section):
    """What is not given here is inherited."""

    stage_name: Name
    mode: Mode | None = None
    algorithm: Algorithm | None = None
    buffer: Buffer | None = None
    data_processor: DataProcessor | None = None
    explorer: Explorer | None = None
    trainer: Trainer | None = None
    policy: Policy | None = None
