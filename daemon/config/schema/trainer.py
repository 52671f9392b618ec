"""Section `trainer`: how steps are made and kept."""

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
"""A figure of an evaluation: `eval/TASKSET/FIGURE`, or `FIGURE` where there is one held-out taskset."""
Mode: TypeAlias = Annotated[Literal["max", "min"], word()]
Bound: TypeAlias = Annotated[float, Field(ge=-1e12, le=1e12)]
ChangeShare: TypeAlias = Annotated[float, Field(gt=0, le=1000)]


class BestCheckpoint(Section):
    """`trainer.best_checkpoint`: rftd only."""

    metric: Metric = "score"
    """The figure of an evaluation that tells which checkpoint is best."""
    mode: Mode = "max"
    """`max`: more of it is better; `min`: less."""
    keep: Count = 1
    """The checkpoints that are kept for it, beside the newest `max_checkpoints_to_keep`."""


class EarlyStop(Section):
    """`trainer.early_stop`: rftd only."""

    metric: Metric = "score"
    """The figure of an evaluation that decides."""
    mode: Mode = "max"
    """`max`: more of it is better; `min`: less."""
    patience: Annotated[Natural, InUnit("evaluations")] = 0
    """Number of evaluations in a row without an improvement after which the stage ends; 0 = no limit."""
    min_delta: Annotated[float, Field(ge=0, le=1e12)] = 0.0
    """An evaluation is better if it is so by more than this."""
    bound: Bound | None = None
    """The stage ends once the figure is at least so good."""


class EvalRule(Section):
    """An entry of `trainer.rules`: rftd only; one of the four conditions."""

    metric: Metric = "score"
    """The figure of an evaluation that the rule is about."""
    falls_by: ChangeShare | None = None
    """Applies when the figure falls by this share of its highest value: 0.2 is 20 %."""
    rises_by: ChangeShare | None = None
    """Applies when the figure rises by this share of its lowest value."""
    below: Bound | None = None
    """Applies when the figure is below this value."""
    above: Bound | None = None
    """Applies when the figure is above this value."""
    then: Annotated[Literal["pause", "stop"], word()] = "pause"
    """The experiment pauses until it is resumed, or the stage ends."""


_NO_STAGES: Final = "each rank has a part of every layer: more than 1 is refused with the strategy megatron"
_NO_EXPERTS: Final = "no model with experts is trained so: more than 1 is refused with the strategy megatron"


class Megatron(Section):
    """`trainer.megatron`: sizes that hold with `trainer_strategy: megatron`."""

    tensor_model_parallel_size: Count = acts_later(1, why="the trainer's ranks that share each tensor")
    pipeline_model_parallel_size: Count = checked(1, why=_NO_STAGES)
    context_parallel_size: Count = checked(
        1, why="ranks share a text by sequence_parallel alone: more than 1 is refused with the strategy megatron"
    )
    expert_model_parallel_size: Count = checked(1, why=_NO_EXPERTS)
    virtual_pipeline_model_parallel_size: Count | None = checked(None, why=_NO_STAGES)
    expert_tensor_parallel_size: Count | None = checked(None, why=_NO_EXPERTS)
    sequence_parallel: bool = acts_later(
        True, why="ranks that share tensors share a text's places too, on GPUs with transformer-engine"
    )


class Trainer(Section):
    """`trainer`."""

    name: Annotated[str, PLAIN] = harmless("trainer")
    trainer_type: Annotated[str, word(), Upstream("Trainers are verl's and Tinker's."), PLUGIN] = "verl"
    """The engine that trains: `verl`, `torch`, or a third party's. Not written: torch trains where verl cannot."""
    trainer_strategy: Annotated[
        Literal["fsdp2", "fsdp", "megatron"], word(), Upstream("The guide's release trains with `fsdp`.")
    ] = acts_later("fsdp2", why="verl's; fsdp gives the same numbers as fsdp2, and megatron needs its packages")
    save_interval: Annotated[Natural, InUnit("steps")] = 0
    """0 = only at the end of a stage."""
    enable_preview: bool = harmless(True)
    total_steps: Steps | None = None
    """Training steps of the stage, where `buffer.total_steps` says nothing."""
    save_hf_checkpoint: Annotated[Literal["last", "always", "never"], word()] = "last"
    """The checkpoints that get a folder which transformers opens."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Longest gradient of a step; where it is written it wins over `algorithm.optimizer.clip_grad`."""
    use_dynamic_bsz: bool = True
    """verl's, as the other fields that say so: micro-batches are cut by tokens, and not by responses."""
    use_remove_padding: bool = True
    """verl's; it needs flash-attn on a GPU."""
    balance_batch: bool = harmless(True)
    max_nonfinite_steps: Steps = 3
    """rftd only: so many steps in a row that are skipped, for they are not finite, end the experiment."""
    max_idle_steps: Annotated[Natural, InUnit("steps")] = 5
    """rftd only: after so many batches in a row that teach nothing (no token, advantage or gradient) it pauses;
    0 = never."""
    ppo_epochs: Annotated[Count, Upstream("The guide has it in `trainer_config`.")] = 1
    """The number of epochs over a batch; verl's name."""
    ppo_mini_batch_size: Annotated[Count | None, Upstream("The guide leaves it out, for it follows.")] = None
    """Items of `train_batch_size` in one optimizer step; None: all."""
    shuffle: Annotated[bool, Upstream("The guide has it in `trainer_config`.")] = False
    """Each epoch goes over the batch in a different order."""
    critic_warmup: Annotated[Natural, InUnit("steps")] = 0
    """The step before which only the critic learns."""
    max_token_len_per_gpu: Tokens | None = None
    """Tokens of one micro-batch; None: twice the model's length, divided by `ulysses_sequence_parallel_size`, or as
    many as the trainer has memory for when the file is submitted."""
    ulysses_sequence_parallel_size: Annotated[int, Field(le=10**6)] = 1
    """Ranks that share one sequence; it divides the tokens of one micro-batch."""
    fix_actor_microbatch_loss_scale: bool = harmless(
        False, why="the loss of a batch is divided as a whole, whatever the micro-batches"
    )
    param_offload: bool = False
    """verl's, on GPUs."""
    optimizer_offload: bool = False
    """verl's, on GPUs."""
    grad_offload: bool = harmless(False)
    offload_policy: bool = harmless(False)
    save_strategy: Annotated[Literal["unrestricted", "single_thread", "single_process", "single_node"], word()] = (
        "unrestricted"
    )
    """verl's: the ranks that write a checkpoint at once."""
    max_checkpoints_to_keep: Annotated[Natural, Upstream("The guide's `trainer_config` keeps 5.")] = 0
    """0 = all."""
    best_checkpoint: BestCheckpoint | None = None
    """rftd only: the checkpoints with the best evaluation are kept, too; each version that is evaluated is saved."""
    early_stop: EarlyStop | None = None
    """rftd only: the stage ends before its last step."""
    rules: list[EvalRule] = []
    """rftd only: what happens when the figure of an evaluation crosses a threshold."""
    megatron: Megatron = section(Megatron)
    trainer_config: Annotated[Args | None, ARGUMENTS] = None
    """veRL's own tree: each key acts, is refused with the field that says it here, or is named in a warning."""
    trainer_config_path: Annotated[str, PATH] = ""
    """The older spelling: the client reads the file and puts it into trainer_config."""
    engine_args: Annotated[Args, ARGUMENTS] = {}
    """rftd only: handed to the engine as it is."""
