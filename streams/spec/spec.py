"""The specification of an experiment, resolved: the immutable part of `experiment.submitted`, read by every worker.

The experiment file (schema of the configuration guide) belongs to `rftd.daemon.config`; this is its resolved form:
paths absolute, defaults filled in, stages complete, and no secret, only names of environment variables.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.streams.log.bounds import Finite, Index, Integer
from rftd.streams.log.marked import InputArguments, InputPath, OwnPath
from rftd.streams.spec.engines import (
    OWNERS,
    AuxiliarySpec,
    ClusterSpec,
    EngineNeeds,
    ReachSpec,
    ServingSpec,
    WorkerMemory,
)
from rftd.streams.spec.sections import (
    Budgets,
    DynamicTimeout,
    Format,
    Optimizer,
    OverRollout,
    StragglerReissue,
    Synchronizer,
)
from rftd.streams.spec.stage_parts import ByEvaluation, CorrectionSpec, OperatorSpec, TrackerSpec, UpdatesSpec
from rftd.streams.spec.task_pipeline import TaskPipelineSpec

# A default gives the meaning of logs written before the field existed: it never changes, whatever new experiments get.
# Events write every field out.


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a specification: frozen structs with keyword arguments."""


class SamplingSpec(Spec, frozen=True, kw_only=True):
    """The distribution of drawn responses, and their lengths."""

    temperature: Finite = 1.0
    top_p: Finite = 1.0
    top_k: Integer = -1
    max_tokens: Integer = 128
    min_tokens: Integer = 0
    stop: tuple[str, ...] = ()
    min_p: Finite = 0.0
    """Keeps tokens with at least this share of the likeliest token's probability; 0 keeps every token."""
    repetition_penalty: Finite = 1.0
    """Divides positive logits of earlier tokens, and multiplies negative ones; 1 changes nothing."""
    presence_penalty: Finite = 0.0
    """Subtracted from the logit of each token drawn before."""
    logit_bias: tuple[tuple[Integer, Finite], ...] = ()
    """(token, addition to its logit)."""
    ignore_eos: bool = False
    """Continue after an end of sequence."""
    processed_logprobs: bool = False
    """Record each token's log-probability in the distribution it was drawn from, beside the model's own."""


class TasksetSpec(Spec, frozen=True, kw_only=True):
    """A dataset of tasks (or of SFT rows): jsonl files, in file order and line order."""

    name: str
    path: InputPath
    more_paths: tuple[InputPath, ...] = ()
    """Paths read after `path`."""
    subset: str | None = None
    split: str = "train"
    format: Format = Format()
    schema: str = "sft"
    """The kind of a row to train on: `sft` an answer, `dpo` two of them, `kto` one with a label, `cpt` a text."""
    repeat_times: Index = 1
    workflow: str = "math_workflow"
    workflow_args: dict[str, Any] = {}
    reward: str | None = None
    reward_args: InputArguments = {}
    sampling: SamplingSpec = SamplingSpec()
    selector: str = "sequential"
    """`sequential`, `shuffle` and `random` depend on the places of rows (`row_order`); others draw rows
    (`tasks.drawn`).
    """
    selector_args: dict[str, Any] = {}
    feature_keys: tuple[str, ...] = ()
    """The columns of numbers used by the selector."""
    follows_rewards: bool = False
    """True if its selector uses the rewards of closed groups; filled in by the daemon for a third party's."""
    seed: Integer = 42
    limit_rows: Index | None = None
    """Number of first rows used; None: all."""
    max_epochs: Index = 0
    """Epochs over rows beside experiences, after which the stage ends; 0: as many as needed."""
    max_retry_times: Integer = 3
    rows: Index = 0
    """Number of rows, filled in by the daemon at the experiment's acceptance."""
    digest: str = ""
    """sha256 of the dataset's bytes, filled in likewise: a worker with another dataset must refuse."""
    queue: bool = False
    """No dataset: its rows are `tasks.added` of the log, added while the experiment runs."""
    algorithm: str = ""
    """The algorithm of its groups; empty: the stage's."""
    advantage: str = ""
    """The advantage function of its groups; empty: the stage's."""
    advantage_args: dict[str, Any] = {}
    """Arguments of `advantage`."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, patterns of files and folders to read, in order; none for a queue."""
        return (self.path, *self.more_paths) if self.path else ()


class LoraSpec(Spec, frozen=True, kw_only=True):
    """A low-rank adapter, trained instead of the model's own weights (arXiv 2106.09685)."""

    name: str = "default"
    path: InputPath = ""
    """An initial adapter in peft's layout; empty for a fresh one, without effect at first."""
    rank: Index = 32
    alpha: Finite = 32
    target_modules: tuple[str, ...] = ("all-linear",)
    exclude_modules: tuple[str, ...] = ()


class ModelSpec(Spec, frozen=True, kw_only=True):
    """The model, its templates and parsers, and its lengths in tokens."""

    path: InputPath
    max_model_len: Index
    max_prompt_tokens: Index
    max_response_tokens: Index
    min_response_tokens: Index = 0
    chat_template: str | None = None
    enable_thinking: bool | None = None
    """A variable of the chat template; None: not passed."""
    enable_prompt_truncation: bool = True
    trust_remote_code: bool = False
    lora: LoraSpec | None = None
    tool_call_parser: str = ""
    """Format of its tool calls, by vLLM's name; empty: `hermes`."""
    reasoning_parser: str = ""
    """Format of its reasoning before the answer, by vLLM's name; empty: reasoning is part of the answer."""
    auto_tool_choice: bool = True
    """Tool calls are parsed if a client leaves the choice of calling to the model."""


class AlgorithmSpec(Spec, frozen=True, kw_only=True):
    """The objective: a registered type and its resolved parts."""

    kind: str
    repeat_times: Index = 1
    advantage: str = "none"
    advantage_args: dict[str, Any] = {}
    greedy_rollouts: Index = 0
    """First rollouts of each group drawn greedily for a baseline and not trained."""
    policy_loss: str = "sft"
    policy_loss_args: dict[str, Any] = {}
    kl_penalty: str = "none"
    """The estimator of the KL divergence subtracted from each token's reward or advantage."""
    kl_penalty_args: dict[str, Any] = {}
    kl_penalty_place: str = "after"
    """`after`: from each token's advantage; `before`: from the response's reward, before its group's normalisation."""
    kl_loss: str = "none"
    kl_loss_args: dict[str, Any] = {}
    entropy_loss: str = "none"
    entropy_loss_args: dict[str, Any] = {}
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: Finite | None = None
    """The divisor of `seq-mean-token-sum-norm`; None: the length of the batch's longest response."""
    sample_strategy: str = "default"
    sample_strategy_args: dict[str, Any] = {}
    correction: CorrectionSpec = CorrectionSpec()
    optimizer: Optimizer = Optimizer()


class PrioritySpec(Spec, frozen=True, kw_only=True):
    """The order of training experiences: a registered function of an experience and its uses."""

    kind: str = "tag"
    """`tag`: the experience's priority tag."""
    args: dict[str, Any] = {}


class PolicySpec(Spec, frozen=True, kw_only=True):
    """The bounds on explorers running ahead (admission), and on the choice and reuse of trained experiences
    (consumption).
    """

    kind: str = "hard_bound"
    max_staleness_versions: Integer = 0
    """Upper bound of a batch's staleness: staleness of batch n is (n - 1) minus its oldest weight version."""
    bounded: bool = True
    """False if the kind only paces by it, without retiring stale experiences."""
    max_inflight_batches: Index = 1
    """Maximum number of groups leased and not yet planned, in batches."""
    min_group_members: Index = 2
    args: dict[str, Any] = {}
    """The kind's own arguments."""
    priority: PrioritySpec = PrioritySpec()
    max_uses: Index = 1
    """Maximum number of plans with an experience; 0 = until it is retired for another reason."""
    cooldown_s: Finite = 0.0
    """Cooldown of an experience between two uses."""
    capacity: Index = 0
    """Maximum number of experiences waiting, or past their cooldown; 0 = unlimited."""
    evict_when_full: bool = False
    """True: beyond the capacity, experiences of lowest priority are retired; else no more are admitted."""


class RolloutSpec(Spec, frozen=True, kw_only=True):
    """The rollout side of one experiment: engine, explorers, time limits and devices."""

    engine: str = "torch"
    explorers: Index = 1
    """Number of explorer processes."""
    concurrency: Index = 8
    """Maximum number of concurrent rollouts of one explorer."""
    lease_rollouts: Index = 0
    """Maximum number of rollouts in one lease of a group; 0: the whole group."""
    threads_each: bool = False
    """True: each rollout's workflow runs on a separate thread."""
    max_timeout_s: Finite = 1800.0
    """Time limit of an attempt at one rollout."""
    max_retry_times: Integer = 2
    """Further attempts inside one lease; `TasksetSpec.max_retry_times` counts leases ended without an answer."""
    over_rollout: OverRollout = OverRollout()
    dynamic_timeout: DynamicTimeout = DynamicTimeout()
    straggler_reissue: StragglerReissue = StragglerReissue()
    dtype: str = "float32"
    threads: Index = 1  # 0: as many as the machine has
    engine_args: dict[str, Any] = {}
    """The engine's own arguments, by the names it declares."""
    needs: EngineNeeds = EngineNeeds()
    environment: tuple[str, ...] = ()
    """Names of environment variables needed by the explorer; values are read on its machine."""
    environment_values: dict[str, str] = {}
    """Variables set for each explorer; none is a secret."""
    eval_engine: str = "own"
    """`shared`: evaluations use the engine of the rollouts; `own`: a second engine beside it."""


class TrainerSpec(Spec, frozen=True, kw_only=True):
    """The training side of one experiment: engine, checkpoints, precision and updates."""

    engine: str = "torch"
    save_interval: Index = 0
    """Steps between checkpoints; 0 = only at the end of a stage."""
    max_checkpoints_to_keep: Index = 0
    save_hf: str = "last"
    """`always`, `last` or `never`."""
    max_tokens_per_micro_batch: Index = 8192
    micro_batch_written: bool = True
    """False: the file left it open, and acceptance chose it by the trainer's memory."""
    threads: Index = 1
    """0: as many as the machine has."""
    dtype: str = "float32"
    max_nonfinite_steps: Index = 3
    """The experiment fails after this many consecutive steps skipped for a non-finite loss."""
    max_idle_steps: Index = 0
    """The experiment pauses after this many consecutive batches without a learning signal; 0: never."""
    critic_path: InputPath = ""
    """The critic's initial model; empty: the policy's."""
    critic_warmup_steps: Index = 0
    """The step of the stage before which only the critic learns."""
    updates: UpdatesSpec = UpdatesSpec()
    critic_updates: UpdatesSpec | None = None
    """The critic's optimizer steps; None: equal to the policy's."""
    teacher_path: InputPath = ""
    """The teacher model of the algorithm, if it has one."""
    engine_args: dict[str, Any] = {}
    devices: Index = 0
    """Number of GPUs exclusive to the trainer; 0: none are assigned, and it uses the machine's visible ones."""
    by_evaluation: ByEvaluation = ByEvaluation()


class StageSpec(Spec, frozen=True, kw_only=True):
    """One stage, complete: algorithm, model, tasks, policy, schedule, rollouts and trainer."""

    name: str
    folder: OwnPath = ""
    """Absolute, with its `global_step_N` below: job_dir itself for a file without `stages`, else job_dir/name."""
    kind: str
    """`train` (from a dataset; no explorer), `both`, or `explore` (collects experiences; no step)."""
    total_steps: Index
    """0 until the daemon has counted the rows: then total_epochs * rows // batch_size."""
    full_steps: Index = 0
    """Number of steps before the stage was shortened, used for learning rates; 0: `total_steps`."""
    total_epochs: Index = 0
    collect_groups: Index = 0
    """Number of tasks tried by an `explore` stage; 0 until the daemon has counted the rows."""
    batch_size: Index
    """Tasks of one explore step."""
    train_batch_size: Index
    """Items of one training step."""
    algorithm: AlgorithmSpec
    model: ModelSpec
    taskset: TasksetSpec | None = None
    """Tasks to explore (`both`)."""
    more_tasksets: tuple[TasksetSpec, ...] = ()
    """Further tasks explored among them; rows are counted on from one taskset to the next (`stage_tasks`)."""
    dataset: TasksetSpec | None = None
    """Rows to train on (`train`), or an expert's rows beside the experiences (`mix`)."""
    expert_rows: Index = 0
    """Number of rows of `dataset` in each batch; all items in a `train` stage."""
    evals: tuple[TasksetSpec, ...] = ()
    eval_interval: Index = 0
    """Steps between evaluations; 0: only at the ends, by `eval_on_startup` and `eval_at_end`."""
    eval_on_startup: bool = True
    eval_at_end: bool = True
    max_read_timeout_s: Finite = 1800.0
    pipeline: tuple[OperatorSpec, ...] = ()
    """Operators on the experiences of each finished group, in order, before the group is closed."""
    task_pipeline: TaskPipelineSpec | None = None
    """The pipeline with the rows of the first taskset as result; of the dataset, in a `train` stage."""
    policy: PolicySpec = PolicySpec()
    synchronizer: Synchronizer = Synchronizer(sync_method="checkpoint")
    turns: bool = False
    """True if explorers and trainer share one device: no generation during a training step, and vice versa."""
    rollout: RolloutSpec = RolloutSpec()
    trainer: TrainerSpec = TrainerSpec()
    serving: ServingSpec | None = None
    """Explorers answer over HTTP, and `taskset` has the clients' requests: its rows arrive while the stage runs."""
    auxiliary: tuple[AuxiliarySpec, ...] = ()
    """The models available to workflows and rewards, beside the trained one."""
    sources: dict[str, str] = {}
    """Text of each Python file with a reward, workflow, agent or loss of the stage, by the file's name."""

    @property
    def experiences_per_step(self) -> int:
        """Items of one training step produced by explorers."""
        return self.train_batch_size - self.expert_rows if self.kind != "train" else 0


class ExperimentSpec(Spec, frozen=True, kw_only=True):
    """An experiment as stored in the log: identity, stages, the user's file and the limits."""

    project: str
    group: str = ""
    name: str
    job_dir: OwnPath
    """Absolute; checkpoints, weights and logs of the experiment lie below it."""
    stages: tuple[StageSpec, ...]
    half: str = "both"
    """The half in this submission: `both`, `explore` or `train`; the other half is another submission."""
    deterministic: bool = False
    seed: Integer = 42
    priority: Integer = 0
    """Priority in the queue; the highest goes first."""
    config: dict[str, Any]
    """The user's file, normalised to the current spelling, as printed by `rftd config show --given`."""
    warnings: tuple[str, ...] = ()
    memory: tuple[WorkerMemory, ...] = ()
    labels: dict[str, str] = {}
    cluster: ClusterSpec = ClusterSpec()
    log_level: str = "INFO"
    """The lowest level of its workers' log lines."""
    reach: ReachSpec = OWNERS
    trackers: tuple[TrackerSpec, ...] = ()
    """The trackers following its log, each in a separate process."""
    limits: Budgets = Budgets()
    """Budgets of the experiment; spending one pauses the experiment until a person continues it."""
