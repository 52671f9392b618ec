"""The experiment file as a whole, and its small sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from rftd.daemon.config.schema.algorithm import Algorithm
from rftd.daemon.config.schema.buffer import Buffer
from rftd.daemon.config.schema.explorer import Explorer
from rftd.daemon.config.schema.model import Model
from rftd.daemon.config.schema.name_grammar import Label, LabelText, Name, OptionalName
from rftd.daemon.config.schema.policy import Policy
from rftd.daemon.config.schema.section import (
    Args,
    Count,
    Natural,
    Section,
    Seed,
    Steps,
    Url,
    acts_later,
    declared,
    harmless,
    refused,
    section,
    word,
)
from rftd.daemon.config.schema.trainer import Trainer
from rftd.streams.spec.budgets import Budgets
from rftd.streams.spec.declaration import ADDRESS, ARGUMENTS, PATH, PLAIN, PLUGIN, URL, FieldEffect, Upstream
from rftd.streams.spec.synchronizer import Synchronizer
from rftd.streams.spec.tracking import MOST_SAMPLES

Mode: TypeAlias = Annotated[Literal["both", "train", "explore", "bench", "serve", "colocate"], word()]


class Cluster(Section):
    """`cluster`; the derived counts of the guide are not fields of the file."""

    ray_address: Annotated[str, Upstream("Any cluster may be named."), ADDRESS] = "auto"
    """The address of the cluster that the daemon uses; another one is refused."""
    node_num: Natural | None = 0
    """0 = what there is."""
    gpu_per_node: Natural | None = 0
    """GPUs of each node that the experiment takes, or process slots where there is no GPU; 0 = what there is."""


Level = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]


class Log(Section):
    """`log`."""

    level: Level = "INFO"
    """Lowest level of the lines that the experiment's workers log."""
    group_by_node: bool = False
    """True: on a Ray cluster, the logs of its actors are kept in a folder for each node."""


MonitorType: TypeAlias = Annotated[
    Literal["tensorboard", "wandb", "mlflow", "swanlab", "trackio", "jsonl", "console"], word()
]


class Monitor(Section):
    """`monitor`."""

    monitor_type: Annotated[MonitorType | None, Upstream("The default is tensorboard.")] = None
    """The tracker that follows the experiment; none: nothing is tracked. `trackio`, `jsonl` and `console` are rftd
    only."""
    also: list[MonitorType] = []
    """rftd only: further trackers beside it."""
    single_run: bool = False
    """rftd only: true: explorer and trainer share one run; false: the guide's two, `NAME_explorer` and
    `NAME_trainer`."""
    samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    """rftd only: the most rows of the tables of rollouts and of evaluation answers that trackers show as text; 0: there
    are no tables."""
    sample_interval: Steps = 1
    """rftd only: the number of training steps from one table of rollouts to the next; each evaluation has one."""
    monitor_args: Annotated[Args | None, ARGUMENTS] = None
    """Arguments of the trackers: `base_url` and `api_key` of wandb, `uri`, `username` and `password` of mlflow,
    those of `swanlab.init`; a secret is `{env: NAME}`."""
    detailed_stats: bool = harmless(False)
    enable_ray_timeline: bool = False
    """True: on a Ray cluster, a `timeline.json` of its tasks is written into the job's folder."""


class DataJuicer(Section):
    """`service.data_juicer`."""

    server_url: Annotated[Url, URL] = None
    auto_start: bool = False
    port: Natural | None = None


class Service(Section):
    """`service`."""

    data_juicer: DataJuicer | None = None


if not TYPE_CHECKING:
    # Sections, which have the attributes of their declarations.
    Synchronizer = declared(Synchronizer)
    Budgets = declared(Budgets)


_OPERATORS: Final = "there are no operators on data yet"
_BEFORE: Final = "leave it out, and prepare the dataset before it is submitted"


class Operator(Section):
    """An operator and its arguments."""

    name: Annotated[str, PLUGIN]
    args: Annotated[Args, ARGUMENTS] = {}


class ExperiencePipeline(Section):
    """`data_processor.experience_pipeline`."""

    operators: list[Operator] = refused([], why=_OPERATORS, fix=_BEFORE)
    save_input: bool = harmless(True, why="the log keeps every experience")
    input_save_path: Annotated[Url, PATH] = harmless(None, why="the log keeps every experience")
    inputs: Annotated[dict[str, Any], ARGUMENTS] = refused({}, why=_OPERATORS, fix=_BEFORE)
    output: Annotated[Any, ARGUMENTS] = refused(None, why=_OPERATORS, fix=_BEFORE)


class TaskPipeline(Section):
    """`data_processor.task_pipeline`."""

    operators: list[Operator] = refused([], why=_OPERATORS, fix=_BEFORE)
    num_process: Count = harmless(4, why=_OPERATORS)
    config_path: Annotated[str | None, PATH] = refused(None, why=_OPERATORS, fix=_BEFORE)
    inputs: Annotated[list[str], ARGUMENTS] = refused([], why=_OPERATORS, fix=_BEFORE)
    output: Annotated[Any, ARGUMENTS] = refused(None, why=_OPERATORS, fix=_BEFORE)
    target_fields: Annotated[list[str], PLAIN] = refused([], why=_OPERATORS, fix=_BEFORE)
    priority_weights: Annotated[dict[str, float], PLAIN] = refused({}, why=_OPERATORS, fix=_BEFORE)
    top_k: Annotated[int, Field(ge=-1)] = refused(-1, why=_OPERATORS, fix=_BEFORE)


class DataProcessor(Section):
    """`data_processor`."""

    experience_pipeline: ExperiencePipeline | None = None
    task_pipeline: TaskPipeline | None = None


class Stage(Section):
    """An entry of `stages`: sections that are laid over the global ones; what is not given is inherited."""

    stage_name: Name
    mode: Mode | None = None
    algorithm: Algorithm | None = None
    buffer: Buffer | None = None
    data_processor: DataProcessor | None = None
    explorer: Explorer | None = None
    trainer: Trainer | None = None
    policy: Policy | None = None


class Experiment(Section):
    """Every section of the guide, and rftd's own: `deterministic`, `seed`, `priority`, `limits`, `labels`."""

    mode: Mode = "both"
    """The work of the run: to explore and train (`both`), either alone, to measure (`bench`), to answer clients
    (`serve`), or to explore and train in turn on one device (`colocate`)."""
    project: Name = "Trinity-RFT"
    """The first part of the experiment's folder."""
    group: OptionalName = ""
    """The part of the experiment's folder between project and name; empty: none."""
    name: Name = "rft"
    """The last part of the experiment's folder, and its name in every command."""
    checkpoint_root_dir: Annotated[str, PATH] = ""
    """The folder above that of the experiment; empty: `$TRINITY_CHECKPOINT_ROOT_DIR`, else `./checkpoints`. Absolute by
    the time the daemon reads it."""
    ray_namespace: Annotated[str, Upstream("Trinity-RFT 0.6 has the group in it, too."), PLAIN] = ""
    """The namespace of its actors on a Ray cluster; empty: `PROJECT/NAME`."""
    continue_from_checkpoint: bool = acts_later(
        True, why="the daemon continues from the experiment that ended in the folder"
    )
    ignore_validator_suggestions: bool = harmless(False, why="no advice on memory is given")
    deterministic: bool = False
    """rftd only: true gives the same weights whatever happens to the run; it needs `sync_style: fixed`."""
    seed: Seed = 42
    """rftd only: all other random numbers follow from it."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """rftd only: the experiment's turn among those that wait; the highest goes first."""
    labels: Annotated[dict[Label, LabelText], PLAIN] = {}
    """rftd only: texts by name that are kept with the experiment."""
    limits: Budgets = section(Budgets)
    algorithm: Algorithm = section(Algorithm)
    data_processor: DataProcessor = section(DataProcessor)
    model: Model = section(Model)
    cluster: Cluster = section(Cluster)
    buffer: Buffer = section(Buffer)
    explorer: Explorer = section(Explorer)
    trainer: Trainer = section(Trainer)
    monitor: Monitor = section(Monitor)
    synchronizer: Synchronizer = section(Synchronizer)
    policy: Policy | None = None
    """rftd only: how far explorers run ahead, and what may be trained on; none: `hard_bound`, or `in_order` with
    `deterministic`."""
    service: Service = section(Service, mark=FieldEffect("harmless", "no operator asks for it"))
    log: Log = section(Log)
    stages: list[Stage] = []
    derived: Annotated[dict[str, Any], ARGUMENTS] = harmless(
        {}, why="it follows from the rest, and `rftd config show` prints it"
    )
