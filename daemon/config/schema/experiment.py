"""The experiment file as a whole, and small sections."""

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
    LocalPath,
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
from rftd.ops.limits import SOURCE_SIZE_BYTES, SOURCES
from rftd.streams.spec.declaration import ADDRESS, ARGUMENTS, PATH, PLAIN, PLUGIN, SOURCE, URL, Upstream
from rftd.streams.spec.sections import Budgets, Synchronizer
from rftd.streams.spec.stage_parts import MOST_SAMPLES
from rftd.workers.workflows.source import FILE as SOURCE_FILE

Mode: TypeAlias = Annotated[Literal["both", "train", "explore", "bench", "serve", "colocate"], word()]
"""Mode of an experiment: its activity."""


class Cluster(Section):
    """`cluster`; the guide's derived counts are not fields of the file."""

    ray_address: Annotated[str, Upstream("Any cluster is allowed."), ADDRESS] = "auto"
    """Address of the daemon's cluster; any other address is refused."""
    node_num: Natural | None = 0
    """Number of nodes; 0 = all."""
    gpu_per_node: Natural | None = 0
    """GPUs per node for the experiment, or process slots on nodes without GPUs; 0 = all."""


Level = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
    BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value),
]
"""Level of log lines, in any case."""


class Log(Section):
    """`log`: the workers' log lines."""

    level: Level = "INFO"
    """Minimum level of the workers' log lines."""
    group_by_node: bool = False
    """true: on a Ray cluster, actors' logs are stored in a folder per node."""


MonitorType: TypeAlias = Annotated[
    Literal["tensorboard", "wandb", "mlflow", "swanlab", "trackio", "jsonl", "console"], word()
]
"""Names of built-in trackers."""


class Monitor(Section):
    """`monitor`: the tracker showing the experiment's figures, and its arguments."""

    monitor_type: Annotated[MonitorType | None, Upstream("The default is tensorboard.")] = None
    """Tracker of the experiment; none: no tracking. `trackio`, `jsonl` and `console` are rftd only."""
    also: list[MonitorType] = []
    """rftd only: additional trackers."""
    single_run: bool = False
    """rftd only: true: explorer and trainer share one run; false: two runs as in the guide, `NAME_explorer` and
    `NAME_trainer`."""
    samples: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    """rftd only: maximum number of rows in the tables of rollouts and evaluation answers that trackers show; 0: no
    tables."""
    sample_interval: Steps = 1
    """rftd only: training steps between two tables of rollouts; each evaluation has a table."""
    monitor_args: Annotated[Args | None, ARGUMENTS] = None
    """Arguments of the trackers: `base_url` and `api_key` of wandb, `uri`, `username` and `password` of mlflow, the
    arguments of `swanlab.init`; secrets as `{env: NAME}`."""
    detailed_stats: bool = harmless(False)
    enable_ray_timeline: bool = False
    """true: on a Ray cluster, write a `timeline.json` of the tasks into the job's folder."""


class DataJuicer(Section):
    """`service.data_juicer`: the service Data-Juicer, for operators that need the package."""

    server_url: Annotated[Url, URL] = None
    """Address of a running service, `http://HOST:PORT`; with `auto_start` without effect."""
    auto_start: bool = False
    """true: each process with such operators starts a service of its own, and ends it."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of a started service; none: any."""
    python: Annotated[str | None, LocalPath()] = None
    """rftd only: Python with py-data-juicer for `auto_start`; none: rftd's own."""
    release: Annotated[str, PLAIN] = ""
    """rftd only: release of Data-Juicer required of the service; empty: any, but the same in all answers."""


class Service(Section):
    """`service`: services used by data pipelines."""

    data_juicer: DataJuicer | None = None


if not TYPE_CHECKING:
    # Sections with the attributes of the declarations.
    Synchronizer = declared(Synchronizer)
    Budgets = declared(Budgets)


SourceFile: TypeAlias = Annotated[str, Field(pattern=rf"^{SOURCE_FILE.pattern}$")]
"""Name of a Python file sent with the experiment."""
SourceText: TypeAlias = Annotated[str, Field(max_length=SOURCE_SIZE_BYTES)]
"""Text of a Python file sent with the experiment."""

_FROM_EXPLORERS: Final = "experiences come from the explorers, and go to the replay buffer"
"""Reason for refusing other sources and targets of experiences."""
_INLINE: Final = "operators are part of the experiment file"
"""Reason for refusing a separate file of operators."""


class DataOperator(Section):
    """A data operator with arguments."""

    name: Annotated[str, PLUGIN]
    """The operator, built-in or of an installed package."""
    args: Annotated[Args, ARGUMENTS] = {}
    """Arguments of the operator."""


class ExperiencePipeline(Section):
    """`data_processor.experience_pipeline`: operators on experiences before training."""

    operators: list[DataOperator] = []
    """Operators on the experiences of each finished task, in order: filters, masks and changes of rewards."""
    save_input: bool = harmless(True, why="the log stores every experience")
    input_save_path: Annotated[Url, PATH] = harmless(None, why="the log stores every experience")
    inputs: Annotated[dict[str, Any], ARGUMENTS] = refused({}, why=_FROM_EXPLORERS)
    output: Annotated[Any, ARGUMENTS] = refused(None, why=_FROM_EXPLORERS)


Weight: TypeAlias = Annotated[Literal["difficulty", "diversity", "usage_frequency", "quality"], word()]
"""Score with a weight in the priority of a row."""


class TaskOutput(Section):
    """`data_processor.task_pipeline.output`: a copy of the pipeline's result."""

    path: Annotated[str, LocalPath()]
    """File of the copy, in JSON Lines."""


class TaskPipeline(Section):
    """`data_processor.task_pipeline`: operators on rows, run once at submission; the result is the taskset."""

    operators: list[DataOperator] = []
    """Operators on the rows, in order: filters, and figures for the priority."""
    num_process: Annotated[int, Field(ge=1, le=256)] = 4
    """Maximum number of processes of an operator; a result does not depend on it."""
    config_path: Annotated[str | None, PATH] = refused(
        None, why=_INLINE, fix="write the list `process` of that file as operators"
    )
    inputs: Annotated[list[str], LocalPath()] = []
    """Files, glob patterns or folders of rows; empty: the path of the taskset."""
    output: Annotated[TaskOutput | None, Upstream("A storage of any type.")] = None
    """Copy of the result; none: the path of the taskset if `inputs` are set and the path is another one. The file must
    not exist yet."""
    target_fields: Annotated[list[str], PLAIN] = []
    """Columns with texts; operators judge the text of the first one. Empty: `format.prompt_key`."""
    priority_weights: Annotated[dict[Weight, Annotated[float, Field(ge=-1e6, le=1e6)]], PLAIN] = {}
    """Weights of the scores in a row's priority; empty: difficulty -0.7, diversity 0.8, usage_frequency -0.5, quality
    1.0."""
    top_k: Annotated[int, Field(ge=-1, le=10**9)] = -1
    """Number of rows of highest priority to keep; -1: all. Rows without any score keep the order of the inputs."""
    made: Annotated[Args, PLAIN] = acts_later({}, why="the daemon runs no pipeline operators with it")
    """rftd only: written by the daemon: digests of inputs and operators of the result. With it, nothing is run
    again."""


class DataProcessor(Section):
    """`data_processor`: pipelines processing tasks and experiences."""

    experience_pipeline: ExperiencePipeline | None = None
    task_pipeline: TaskPipeline | None = None


class Stage(Section):
    """An entry of `stages`: sections merged over the global ones; unset fields are inherited."""

    stage_name: Name
    mode: Mode | None = None
    algorithm: Algorithm | None = None
    buffer: Buffer | None = None
    data_processor: DataProcessor | None = None
    explorer: Explorer | None = None
    trainer: Trainer | None = None
    policy: Policy | None = None


class Experiment(Section):
    """All sections of the guide, and rftd's own: `deterministic`, `seed`, `priority`, `limits`, `labels`."""

    mode: Mode = "both"
    """`both` explores and trains; `explore` and `train` do one of the two; `bench` evaluates checkpoints; `serve`
    answers clients; `colocate` explores and trains alternately on one device."""
    project: Name = "Trinity-RFT"
    """First part of the experiment's folder."""
    group: OptionalName = ""
    """Part of the experiment's folder between project and name; empty: none."""
    name: Name = "rft"
    """Last part of the experiment's folder, and the name of the experiment in every command."""
    checkpoint_root_dir: Annotated[str, PATH] = ""
    """Parent folder of all experiments; empty: `$TRINITY_CHECKPOINT_ROOT_DIR`, or `./checkpoints`. The client makes it
    absolute."""
    ray_namespace: Annotated[str, Upstream("In Trinity-RFT 0.6, the group is part of it."), PLAIN] = ""
    """Namespace of the experiment's actors on a Ray cluster; empty: `PROJECT/NAME`."""
    continue_from_checkpoint: bool = acts_later(
        True, why="the daemon continues the experiment that ended in this folder"
    )
    ignore_validator_suggestions: bool = harmless(False, why="rftd gives no advice on memory")
    deterministic: bool = False
    """rftd only: true gives the same weights even after failures and restarts; requires `sync_style: fixed`."""
    seed: Seed = 42
    """rftd only: all other random seeds are derived from it."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    """rftd only: priority among waiting experiments; the highest starts first."""
    labels: Annotated[dict[Label, LabelText], PLAIN] = {}
    """rftd only: labels of the experiment (name: text)."""
    sources: Annotated[dict[SourceFile, SourceText], Field(max_length=SOURCES), SOURCE] = {}
    """rftd only: Python files with rewards, workflows, agents and losses of the experiment (name: text), named as
    `FILE.py:NAME`. The client fills it in from the files named by tasksets and algorithm."""
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
    """rftd only: how far explorers run ahead, and which experiences may be trained; none: `hard_bound`, or `in_order`
    with `deterministic`."""
    service: Service = section(Service)
    log: Log = section(Log)
    stages: list[Stage] = []
    derived: Annotated[dict[str, Any], ARGUMENTS] = harmless(
        {}, why="derived from the other sections; `rftd config show` prints it"
    )
