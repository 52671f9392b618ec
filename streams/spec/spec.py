"""The specification of an experiment, resolved: the immutable part of `experiment.submitted` that every worker reads.

The experiment file (schema of the configuration guide) belongs to `rftd.daemon.config`; this is what it resolves to:
paths absolute, defaults filled in, stages complete, and no secret, only names of environment variables.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rftd.streams.log.bounds import Finite, Index, Integer
from rftd.streams.log.stored_path import InputArguments, InputPath, OwnPath
from rftd.streams.spec.auxiliary import AuxiliarySpec
from rftd.streams.spec.budgets import Budgets
from rftd.streams.spec.by_evaluation import ByEvaluation
from rftd.streams.spec.engine_needs import ClusterSpec, EngineNeeds, WorkerMemory
from rftd.streams.spec.optimizer import Optimizer
from rftd.streams.spec.reach import OWNERS, ReachSpec, ServingSpec
from rftd.streams.spec.row_format import Format
from rftd.streams.spec.slow_rollouts import DynamicTimeout, OverRollout, StragglerReissue
from rftd.streams.spec.synchronizer import Synchronizer
from rftd.streams.spec.tracking import TrackerSpec
from rftd.streams.spec.updates import CorrectionSpec, UpdatesSpec

# A default says what logs mean that were written before the field was there: it never changes, whatever new
# experiments get. Events write every field out.


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of a specification."""


class SamplingSpec(Spec, frozen=True, kw_only=True):
    """The distribution that responses are drawn from, and their lengths."""

    temperature: Finite = 1.0
    top_p: Finite = 1.0
    top_k: Integer = -1
    max_tokens: Integer = 128
    min_tokens: Integer = 0
    stop: tuple[str, ...] = ()
    min_p: Finite = 0.0
    """Keeps tokens at least so likely as this share of the likeliest; 0 keeps every token."""
    repetition_penalty: Finite = 1.0
    """Divides positive logits of tokens that were there, and multiplies negative ones; 1 changes nothing."""
    presence_penalty: Finite = 0.0
    """Taken off the logit of each token that was drawn before."""
    logit_bias: tuple[tuple[Integer, Finite], ...] = ()
    """(token, what is added to its logit)."""
    ignore_eos: bool = False
    """Go on after an end of sequence."""
    processed_logprobs: bool = False
    """Record each token's log-probability in the distribution that it was drawn from, beside the model's own."""


class TasksetSpec(Spec, frozen=True, kw_only=True):
    """A dataset of tasks (or of SFT rows): jsonl files, in file order and line order."""

    name: str
    path: InputPath
    more_paths: tuple[InputPath, ...] = ()
    """What is read after `path`."""
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
    """`sequential`, `shuffle` and `random` go by the places of rows (`row_order`); others draw rows (`tasks.drawn`)."""
    selector_args: dict[str, Any] = {}
    feature_keys: tuple[str, ...] = ()
    """The columns of numbers that the selector looks at."""
    follows_rewards: bool = False
    """Its selector is told the rewards of closed groups; the daemon fills it in for a third party's."""
    seed: Integer = 42
    limit_rows: Index | None = None
    """The number of first rows that are used; None: all."""
    max_epochs: Index = 0
    """The times that rows beside experiences are gone over, after which the stage ends; 0: as many as it needs."""
    max_retry_times: Integer = 3
    rows: Index = 0
    """Filled in by the daemon, which counts them when it accepts the experiment."""
    digest: str = ""
    """sha256 of the dataset's bytes, filled in likewise: a worker that reads another dataset must refuse."""
    queue: bool = False
    """No dataset: its rows are `tasks.added` of the log, which come while the experiment runs."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, patterns of files and folders that are read, in order; none of a queue."""
        return (self.path, *self.more_paths) if self.path else ()


class LoraSpec(Spec, frozen=True, kw_only=True):
    """A low-rank adapter, trained instead of the model's own weights (arXiv 2106.09685)."""

    name: str = "default"
    path: InputPath = ""
    """A folder in peft's layout to begin from; empty for a fresh one, which changes nothing yet."""
    rank: Index = 32
    alpha: Finite = 32
    target_modules: tuple[str, ...] = ("all-linear",)
    exclude_modules: tuple[str, ...] = ()


class ModelSpec(Spec, frozen=True, kw_only=True):
    """The model and its lengths, in tokens."""

    path: InputPath
    max_model_len: Index
    max_prompt_tokens: Index
    max_response_tokens: Index
    min_response_tokens: Index = 0
    chat_template: str | None = None
    enable_thinking: bool | None = None
    """A variable of the chat template; None: it is not given."""
    enable_prompt_truncation: bool = True
    trust_remote_code: bool = False
    lora: LoraSpec | None = None
    tool_call_parser: str = ""
    """The form in which it calls tools, by vLLM's name; empty: `hermes`."""
    reasoning_parser: str = ""
    """The form in which it thinks before it answers, by vLLM's name; empty: thoughts are part of the answer."""
    auto_tool_choice: bool = True
    """Calls are looked for where a client leaves it to the model whether it calls."""


class AlgorithmSpec(Spec, frozen=True, kw_only=True):
    """The objective: a registered type and its resolved parts."""

    kind: str
    repeat_times: Index = 1
    advantage: str = "none"
    advantage_args: dict[str, Any] = {}
    greedy_rollouts: Index = 0
    """First rollouts of each group that are drawn greedily for a baseline and are not trained."""
    policy_loss: str = "sft"
    policy_loss_args: dict[str, Any] = {}
    kl_penalty: str = "none"
    """The estimator of the KL divergence that is taken from each token's reward or advantage."""
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
    """The order in which experiences are trained: a registered function of an experience and its uses."""

    kind: str = "tag"
    """`tag`: the priority that the experience was tagged with."""
    args: dict[str, Any] = {}


class PolicySpec(Spec, frozen=True, kw_only=True):
    """The bounds on how far explorers run ahead (admission), and on what is trained (consumption) and how often."""

    kind: str = "hard_bound"
    max_staleness_versions: Integer = 0
    """Oldest experience a batch may hold: staleness of batch n is (n - 1) minus its oldest weight version."""
    bounded: bool = True
    """False if the kind only paces by it: then nothing is retired as stale."""
    max_inflight_batches: Index = 1
    """Groups leased and not yet planned, in batches, that may exist at once."""
    min_group_members: Index = 2
    args: dict[str, Any] = {}
    """The kind's own."""
    priority: PrioritySpec = PrioritySpec()
    max_uses: Index = 1
    """Most times that an experience may be planned; 0 = as long as nothing else retires it."""
    cooldown_s: Finite = 0.0
    """Rest of an experience between two uses."""
    capacity: Index = 0
    """Experiences that may wait at once, or have rested; 0 = as many as there are."""
    evict_when_full: bool = False
    """Beyond the capacity those of lowest priority are retired; else no more is admitted."""


class RolloutSpec(Spec, frozen=True, kw_only=True):
    """The rollout side of one experiment."""

    engine: str = "torch"
    explorers: Index = 1
    """Explorer processes."""
    concurrency: Index = 8
    """Rollouts that one explorer runs at once."""
    lease_rollouts: Index = 0
    """A group is leased in parts of at most so many rollouts; 0: as one."""
    threads_each: bool = False
    """Each rollout's workflow runs on a thread of its own."""
    max_timeout_s: Finite = 1800.0
    """Longest attempt at one rollout."""
    max_retry_times: Integer = 2
    """Further attempts inside one lease; `TasksetSpec.max_retry_times` counts leases that ended without an answer."""
    over_rollout: OverRollout = OverRollout()
    dynamic_timeout: DynamicTimeout = DynamicTimeout()
    straggler_reissue: StragglerReissue = StragglerReissue()
    dtype: str = "float32"
    threads: Index = 1  # 0: as many as the machine has
    engine_args: dict[str, Any] = {}
    """The engine's own, by the names that it declares."""
    needs: EngineNeeds = EngineNeeds()
    environment: tuple[str, ...] = ()
    """Names of environment variables that the explorer needs; values are read where it runs."""
    environment_values: dict[str, str] = {}
    """Variables that each explorer is given; none is a secret."""
    eval_engine: str = "own"
    """`shared`: evaluations are answered by the engine of the rollouts; `own`: by another one beside it."""


class TrainerSpec(Spec, frozen=True, kw_only=True):
    """The training side."""

    engine: str = "torch"
    save_interval: Index = 0
    """Checkpoint every so many steps; 0 = only at the end of a stage."""
    max_checkpoints_to_keep: Index = 0
    save_hf: str = "last"
    """`always`, `last` or `never`."""
    max_tokens_per_micro_batch: Index = 8192
    micro_batch_written: bool = True
    """False: the file leaves it open, and acceptance chose it, by the trainer's memory."""
    threads: Index = 1
    """0: as many as the machine has."""
    dtype: str = "float32"
    max_nonfinite_steps: Index = 3
    """The experiment fails at so many steps in a row that are skipped for a loss that is not finite."""
    max_idle_steps: Index = 0
    """It pauses after so many batches in a row that teach nothing; 0: never."""
    critic_path: InputPath = ""
    """The model that a critic begins from; empty: the policy's."""
    critic_warmup_steps: Index = 0
    """The step of the stage before which only the critic learns."""
    updates: UpdatesSpec = UpdatesSpec()
    critic_updates: UpdatesSpec | None = None
    """The critic's optimizer steps; None: as the policy's."""
    teacher_path: InputPath = ""
    """The model that an algorithm learns from, if it has a teacher."""
    engine_args: dict[str, Any] = {}
    devices: Index = 0
    """GPUs that it has for its own; 0: it is given none, and sees what its machine shows."""
    by_evaluation: ByEvaluation = ByEvaluation()


class StageSpec(Spec, frozen=True, kw_only=True):
    """One stage, complete."""

    name: str
    folder: OwnPath = ""
    """Absolute; its `global_step_N` lie below: job_dir itself for a file without `stages`, else job_dir/name."""
    kind: str
    """`train` (from a dataset; no explorer), `both`, or `explore` (collects experiences; no step)."""
    total_steps: Index
    """0 until the daemon has counted the rows: then total_epochs * rows // batch_size."""
    full_steps: Index = 0
    """The steps that it had before it was made shorter, by which learning rates go; 0: `total_steps`."""
    total_epochs: Index = 0
    collect_groups: Index = 0
    """Tasks that an `explore` stage tries; 0 until the daemon has counted the rows."""
    batch_size: Index
    """Tasks of one explore step."""
    train_batch_size: Index
    """Items of one training step."""
    algorithm: AlgorithmSpec
    model: ModelSpec
    taskset: TasksetSpec | None = None
    """Tasks to explore (`both`)."""
    more_tasksets: tuple[TasksetSpec, ...] = ()
    """Tasks that are explored among them; rows are counted on from one taskset to the next (`stage_tasks`)."""
    dataset: TasksetSpec | None = None
    """Rows to train on (`train`), or those of an expert beside the experiences (`mix`)."""
    expert_rows: Index = 0
    """Items of each batch that are rows of `dataset`; all of them in a `train` stage."""
    evals: tuple[TasksetSpec, ...] = ()
    eval_interval: Index = 0
    """Evaluate every so many steps; 0 = only as below."""
    eval_on_startup: bool = True
    eval_at_end: bool = True
    max_read_timeout_s: Finite = 1800.0
    policy: PolicySpec = PolicySpec()
    synchronizer: Synchronizer = Synchronizer(sync_method="checkpoint")
    turns: bool = False
    """Explorers and trainer share one device: while a step is trained nothing is generated, and the other way round."""
    rollout: RolloutSpec = RolloutSpec()
    trainer: TrainerSpec = TrainerSpec()
    serving: ServingSpec | None = None
    """Explorers answer over HTTP, and `taskset` is what they were asked: its rows come while the stage runs."""
    auxiliary: tuple[AuxiliarySpec, ...] = ()
    """The models that workflows and rewards may ask, beside the one that is trained."""

    @property
    def experiences_per_step(self) -> int:
        """Items of one training step that explorers produce."""
        return self.train_batch_size - self.expert_rows if self.kind != "train" else 0


class ExperimentSpec(Spec, frozen=True, kw_only=True):
    """An experiment as the log keeps it."""

    project: str
    group: str = ""
    name: str
    job_dir: OwnPath
    """Absolute; checkpoints, weights and logs of the experiment lie below it."""
    stages: tuple[StageSpec, ...]
    half: str = "both"
    """The half that this submission brings: `both`, `explore` or `train`; the other half is another submission."""
    deterministic: bool = False
    seed: Integer = 42
    priority: Integer = 0
    """Its place in the line of those that wait; the highest goes first."""
    config: dict[str, Any]
    """The user's file, normalised to the current spelling, as `rftd config show --given` prints it."""
    warnings: tuple[str, ...] = ()
    memory: tuple[WorkerMemory, ...] = ()
    labels: dict[str, str] = {}
    cluster: ClusterSpec = ClusterSpec()
    log_level: str = "INFO"
    """The lowest level of the lines that its workers log."""
    reach: ReachSpec = OWNERS
    trackers: tuple[TrackerSpec, ...] = ()
    """The trackers that follow its log, each in a process of its own."""
    limits: Budgets = Budgets()
    """What it may spend before it pauses for a person."""
