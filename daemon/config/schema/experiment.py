"""The experiment file as a whole."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rftd.daemon.config.schema.algorithm import Algorithm
from rftd.daemon.config.schema.buffer import Buffer
from rftd.daemon.config.schema.cluster import Cluster
from rftd.daemon.config.schema.data_processor import DataProcessor
from rftd.daemon.config.schema.experiment_name import Mode, Name, OptionalName
from rftd.daemon.config.schema.explorer import Explorer
from rftd.daemon.config.schema.log import Log
from rftd.daemon.config.schema.model import Model
from rftd.daemon.config.schema.monitor import Monitor
from rftd.daemon.config.schema.policy import Policy
from rftd.daemon.config.schema.section import Section, Seed, inert, section
from rftd.daemon.config.schema.service import Service
from rftd.daemon.config.schema.stage import Stage
from rftd.daemon.config.schema.synchronizer import Synchronizer
from rftd.daemon.config.schema.trainer import Trainer


class Experiment(Section):
    """Every section of the configuration guide, and rftd's own `deterministic`, `seed`, `priority` and `labels`."""

    mode: Mode = "both"
    project: Name = "Trinity-RFT"
    group: OptionalName = ""
    name: Name = "rft"
    checkpoint_root_dir: str = ""
    """Absolute by the time the daemon reads it."""
    ray_namespace: str = inert("")
    continue_from_checkpoint: bool = True
    ignore_validator_suggestions: bool = inert(False)
    deterministic: bool = False
    seed: Seed = 42
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """Of its turn among the experiments that wait; the highest goes first."""
    labels: dict[str, str] = {}
    algorithm: Algorithm = section(Algorithm)
    data_processor: DataProcessor = section(DataProcessor, is_inert=True)
    model: Model = section(Model)
    cluster: Cluster = section(Cluster)
    buffer: Buffer = section(Buffer)
    explorer: Explorer = section(Explorer)
    trainer: Trainer = section(Trainer)
    monitor: Monitor = section(Monitor)
    synchronizer: Synchronizer = section(Synchronizer)
    policy: Policy | None = None
    service: Service = section(Service, is_inert=True)
    log: Log = section(Log)
    stages: list[Stage] = []
