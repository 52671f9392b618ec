"""Section `trainer`: training steps and checkpoints."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from rftd.daemon.config.schema.section import (
    Args,
    Count,
    Natural,
    Section,
    Steps,
    Tokens,
    acts_later,
    checked,
    harmless,
    section,
    word,
)
from rftd.streams.spec.declaration import ARGUMENTS, PATH, PLAIN, PLUGIN, InUnit, Upstream

Metric: TypeAlias = Annotated[str, Field(min_length=1, max_length=256), PLAIN]
"""A figure of an evaluation: `eval/TASKSET/FIGURE`, or `FIGURE` with a single held-out taskset."""
Mode: TypeAlias = Annotated[Literal["max", "min"], word()]
"""Direction of a figure: whether higher or lower is better."""
Bound: TypeAlias = Annotated[float, Field(ge=-1e12, le=1e12)]
"""Threshold of a figure."""
ChangeShare: TypeAlias = Annotated[float, Field(gt=0, le=1000)]
"""Relative change of a figure."""


class BestCheckpoint(Section):
    """`trainer.best_checkpoint`, rftd only: keep the checkpoints with the best evaluations."""

    metric: Metric = "score"
    """Evaluation figure by which checkpoints are ranked."""
    mode: Mode = "max"
    """`max`: higher is better; `min`: lower is better."""
    keep: Count = 1
    """Number of best checkpoints to keep, in addition to the newest `max_checkpoints_to_keep`."""


class EarlyStop(Section):
    """`trainer.early_stop`, rftd only: end the stage early by an evaluation figure."""

    metric: Metric = "score"
    """Evaluation figure to watch."""
    mode: Mode = "max"
    """`max`: higher is better; `min`: lower is better."""
    patience: Annotated[Natural, InUnit("evaluations")] = 0
    """The stage ends after this many consecutive evaluations without improvement; 0 = no limit."""
    min_delta: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """Minimum change that counts as an improvement."""
    bound: Bound | None = None
    """The stage ends as soon as the figure reaches this value."""


class EvalRule(Section):
    """An entry of `trainer.rules`: rftd only; exactly one of the four conditions."""

    metric: Metric = "score"
    """Evaluation figure to watch."""
    falls_by: ChangeShare | None = None
    """Applies when the figure falls by this share of its highest value; 0.2 is 20 %."""
    rises_by: ChangeShare | None = None
    """Applies when the figure rises by this share of its lowest value."""
    below: Bound | None = None
    """Applies when the figure is below this value."""
    above: Bound | None = None
    """Applies when the figure is above this value."""
    then: Annotated[Literal["pause", "stop"], word()] = "pause"
    """Pause the experiment until it is resumed, or end the stage."""


_NO_STAGES: Final = "pipeline parallelism is not supported: values above 1 are refused with the strategy megatron"
"""Reason for refusing pipeline parallelism."""
_NO_EXPERTS: Final = "expert parallelism is not supported: values above 1 are refused with the strategy megatron"
"""Reason for refusing expert parallelism."""


class Megatron(Section):
    """`trainer.megatron`: parallel sizes with `trainer_strategy: megatron`."""

    tensor_model_parallel_size: Count = acts_later(
        1, why="the number of trainer ranks that each tensor is split across"
    )
    pipeline_model_parallel_size: Count = checked(1, why=_NO_STAGES)
    context_parallel_size: Count = checked(
        1, why="context parallelism is not supported: values above 1 are refused with the strategy megatron"
    )
    expert_model_parallel_size: Count = checked(1, why=_NO_EXPERTS)
    virtual_pipeline_model_parallel_size: Count | None = checked(None, why=_NO_STAGES)
    expert_tensor_parallel_size: Count | None = checked(None, why=_NO_EXPERTS)
    sequence_parallel: bool = acts_later(
        True, why="tensor-parallel ranks also split the sequence, on GPUs with transformer-engine"
    )


class Trainer(Section):
    """`trainer`: the training engine, its steps and checkpoints."""

    name: Annotated[str, PLAIN] = harmless("trainer")
    trainer_type: Annotated[str, word(), Upstream("verl and Tinker are the trainers."), PLUGIN] = "verl"
    """Engine that trains: `verl`, `torch`, or the name of a plug-in; if not set: torch where verl cannot run."""
    trainer_strategy: Annotated[
        Literal["fsdp2", "fsdp", "megatron"], word(), Upstream("`fsdp` in the guide's release.")
    ] = acts_later(
        "fsdp2", why="verl only; fsdp gives the same numbers as fsdp2, and megatron needs additional packages"
    )
    save_interval: Annotated[Natural, InUnit("steps")] = 0
    """Steps between checkpoints; 0 = only at the end of a stage."""
    enable_preview: bool = harmless(True)
    total_steps: Steps | None = None
    """Training steps of the stage, if `buffer.total_steps` is not set."""
    save_hf_checkpoint: Annotated[Literal["last", "always", "never"], word()] = "last"
    """Checkpoints that get a folder for transformers."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Maximum gradient norm of a step; takes precedence over `algorithm.optimizer.clip_grad`."""
    use_dynamic_bsz: bool = True
    """verl only (as other fields marked so): true limits micro-batches by tokens, false by number of responses."""
    use_remove_padding: bool = True
    """verl only; requires flash-attn on a GPU."""
    balance_batch: bool = harmless(True)
    max_nonfinite_steps: Steps = 3
    """rftd only: fail after this many consecutive non-finite steps."""
    max_idle_steps: Annotated[Natural, InUnit("steps")] = 5
    """rftd only: pause after this many consecutive batches without a learning signal (no token, advantage or gradient);
    0 = never."""
    ppo_epochs: Annotated[Count, Upstream("In the guide, part of `trainer_config`.")] = 1
    """Passes over each batch; verl's name."""
    ppo_mini_batch_size: Annotated[Count | None, Upstream("Derived in the guide.")] = None
    """Items of `train_batch_size` per optimizer step; none: all."""
    shuffle: Annotated[bool, Upstream("In the guide, part of `trainer_config`.")] = False
    """true: each epoch visits the batch in a different order."""
    critic_warmup: Annotated[Natural, InUnit("steps")] = 0
    """Number of steps at the beginning in which only the critic is trained."""
    max_token_len_per_gpu: Tokens | None = None
    """Maximum number of tokens per micro-batch; none: twice the model's length, divided by
    `ulysses_sequence_parallel_size`, or less if the trainer's memory at submission is smaller."""
    ulysses_sequence_parallel_size: Annotated[int, Field(le=10**6)] = 1
    """Ranks that share one sequence; divides the tokens per micro-batch."""
    fix_actor_microbatch_loss_scale: bool = harmless(
        False, why="the loss is always normalised over the whole batch, regardless of micro-batches"
    )
    param_offload: bool = False
    """verl only, on GPUs."""
    optimizer_offload: bool = False
    """verl only, on GPUs."""
    grad_offload: bool = harmless(False)
    offload_policy: bool = harmless(False)
    save_strategy: Annotated[Literal["unrestricted", "single_thread", "single_process", "single_node"], word()] = (
        "unrestricted"
    )
    """verl only: ranks that write a checkpoint concurrently."""
    max_checkpoints_to_keep: Annotated[Natural, Upstream("5 in the guide's `trainer_config`.")] = 0
    """Number of newest checkpoints to keep; 0 = all."""
    best_checkpoint: BestCheckpoint | None = None
    """rftd only: also keep the checkpoints with the best evaluation; each evaluated version is saved."""
    early_stop: EarlyStop | None = None
    """rftd only: end the stage before its last step."""
    rules: list[EvalRule] = []
    """rftd only: actions when an evaluation figure crosses a threshold."""
    megatron: Megatron = section(Megatron)
    trainer_config: Annotated[Args | None, ARGUMENTS] = None
    """veRL's own configuration: each key acts, is refused with the corresponding field of rftd, or is named in a
    warning."""
    trainer_config_path: Annotated[str, PATH] = ""
    """Older spelling: the client reads the file into trainer_config."""
    engine_args: Annotated[Args, ARGUMENTS] = {}
    """rftd only: passed to the engine unchanged."""
