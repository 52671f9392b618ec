"""Sections of an experiment file, declared once for file, specification, documentation and checks."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from rftd.streams.log.marked import OwnPath
from rftd.streams.spec.declaration import (
    HARMLESS,
    PATH,
    PLAIN,
    PLUGIN,
    FieldEffect,
    InUnit,
    Natural,
    OlderWords,
    Seconds,
    Share,
    Steps,
    Upstream,
)


class OverRollout(msgspec.Struct, frozen=True, kw_only=True):
    """`explorer.over_rollout`: continue before the slowest tasks are done."""

    ratio: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of an explore step's tasks not waited for; 0: wait for all."""
    wait_after_min: Annotated[float, Meta(ge=0), InUnit("s")] = 30.0
    """Minimum wait for them once the other tasks are done."""
    return_partial_tasks: bool = False
    """Train on the finished rollouts of abandoned tasks."""


class DynamicTimeout(msgspec.Struct, frozen=True, kw_only=True):
    """`explorer.dynamic_timeout`: a time-out following recent durations."""

    enable: bool = False
    """true: end attempts after `ratio` recent mean durations, if `max_timeout` is longer."""
    warmup_min_steps: Annotated[Natural, InUnit("steps")] = 1
    """Explore steps before it takes effect."""
    ratio: Annotated[float, Meta(gt=0)] = 3.0
    """Maximum length of an attempt in recent mean durations, never above `max_timeout`."""


class StragglerReissue(msgspec.Struct, frozen=True, kw_only=True):
    """`explorer.straggler_reissue`: a slow rollout is also leased to an idle explorer. rftd only."""

    enable: bool = False
    """true: lease a slow rollout to a second explorer; the first one to end counts."""
    ratio: Annotated[float, Meta(ge=1)] = 3.0
    """A lease is slow after this many recent mean durations."""


_Decay: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
"""Type of a decay rate, from 0 to below 1."""


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """`algorithm.optimizer`, for the actor only."""

    lr: Annotated[float, Meta(ge=0, le=1)] = 1e-6
    """Learning rate after the warm-up."""
    lr_warmup_steps: Annotated[int, Meta(ge=-1, le=10**9), InUnit("steps")] = -1
    """Steps of the learning rate's rise from 0; -1: by the ratio."""
    lr_warmup_steps_ratio: Share = 0.0
    """Warm-up as a share of all steps."""
    min_lr_ratio: Annotated[Share, Upstream("It was 0 in the guide's release.")] = 0.01
    """Final share of `lr` with `cosine`."""
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or down a cosine."""
    optimizer_type: Literal["adam", "adamw", "sgd"] = "adam"
    """AdamW (`adam` and `adamw` are synonyms), or SGD."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    """Adam's decay of the first and the second moment."""
    eps: Annotated[float, Meta(gt=0, le=1)] = 1e-8
    """rftd only: Adam's epsilon."""
    weight_decay: Annotated[float, Meta(ge=0, le=10), Upstream("verl decays norms and biases, too.")] = 0.01
    """Weight decay per step, times the learning rate; see `decay_all` for exceptions."""
    decay_all: bool = False
    """rftd only: also decay norms, biases and other 1-D parameters."""
    clip_grad: Annotated[float, Meta(gt=0)] = 1.0
    """Maximum gradient norm; larger gradients are scaled down."""

    def with_counted_warmup(self, total_steps: int) -> Optimizer:
        """Returns the optimizer with its warm-up in steps, if `total_steps` are known (not 0)."""
        steps = self.lr_warmup_steps
        ratio = self.lr_warmup_steps_ratio
        if not ratio or (steps < 0 and not total_steps):
            return self
        counted = steps if steps >= 0 else int(ratio * total_steps)
        return msgspec.structs.replace(self, lr_warmup_steps=counted, lr_warmup_steps_ratio=0.0)


_TEXT_ALONE: Final = FieldEffect("refused", "only text prompts are supported", "leave it out")
"""Effect of the fields for images: they are refused."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """`format`: the keys of a row, by content; a key may lead into a column (`reward_model.ground_truth`)."""

    prompt_type: Literal["messages", "plaintext", "raw"] = "messages"
    """Form of a row: a list of messages; `plaintext`: texts for the chat template; `raw`: unchanged texts."""
    prompt_key: Annotated[str, PLAIN] = "prompt"
    """Key of the prompt."""
    response_key: Annotated[str, PLAIN] = "response"
    """Key of the response, or of a task's right answer."""
    system_prompt_key: Annotated[str | None, PLAIN] = None
    """Key of the system prompt; takes precedence over `system_prompt`."""
    system_prompt: Annotated[str | None, PLAIN] = None
    """System prompt of rows without one."""
    messages_key: Annotated[str, PLAIN] = "message"
    """Key of the conversation."""
    tools_key: Annotated[str, PLAIN] = "tools"
    """Key of the tools: a list of objects, or its JSON."""
    image_key: Annotated[str | None, PLAIN, _TEXT_ALONE] = None
    video_key: Annotated[str | None, PLAIN, _TEXT_ALONE] = None
    reply_prefix: Annotated[str | None, PLAIN] = None
    """Beginning of every response, as a part of the prompt."""
    workflow_key: Annotated[str, PLAIN] = ""
    """Key of a row's own workflow; empty: the taskset's for all rows."""
    reward_fn_key: Annotated[str, PLAIN] = ""
    """Key of a row's own reward; empty: the taskset's for all rows."""
    category_key: Annotated[str | None, PLAIN] = None
    """rftd only: key of a held-out row's category; evaluations have the figures of each category."""
    chosen_key: Annotated[str, PLAIN] = "chosen"
    """Key of the better of two answers."""
    rejected_key: Annotated[str, PLAIN] = "rejected"
    """Key of the worse of two answers."""
    completion_key: Annotated[str, PLAIN] = "completion"
    """Key of a labelled answer (`schema_type: kto`)."""
    label_key: Annotated[str, PLAIN] = "label"
    """Key of the label: true for a desirable answer."""
    enable_concatenated_multi_turn: bool = False
    """true: train on every message of the assistant in a conversation, not only the last."""
    chat_template: Annotated[str | None, PLAIN] = None
    """Chat template of rows to train on; tasks use the model's."""
    enable_thinking: bool | None = None
    """A variable of the chat template, for rows to train on; none: as in `model`."""


SyncStyle: TypeAlias = Annotated[
    Literal["fixed", "explorer_driven", "trainer_driven", "fully_async"],
    OlderWords(dynamic_by_explorer="explorer_driven", dynamic_by_trainer="trainer_driven"),
]
"""Type of the side that decides when weights are exchanged; older words are accepted."""


class Synchronizer(msgspec.Struct, frozen=True, kw_only=True):
    """`synchronizer`: the schedule and the channel of new weights for explorers."""

    sync_method: Annotated[
        str,
        PLUGIN,
        OlderWords(online="nccl", offline="checkpoint"),
        Upstream("`nccl` is used even if not set."),
    ] = "nccl"
    """How weights reach explorers: `checkpoint` by files, `memory` by a shared mapping, `nccl` from GPU to GPU, or a
    third-party weight channel by its name."""
    sync_style: SyncStyle = "fixed"
    """When explorers load new weights: at fixed steps, when either side asks, or as soon as published."""
    sync_interval: Steps = 1
    """Steps between two synchronisations, for a side without its own interval."""
    explorer_sync_interval: Steps | None = None
    """Explore steps between two synchronisations; None: `sync_interval`."""
    trainer_sync_interval: Steps | None = None
    """Training steps between two publications of weights; None: `sync_interval`."""
    sync_offset: Annotated[Natural, InUnit("steps")] = 0
    """Extra explore steps before the first synchronisation."""
    sync_timeout: Annotated[Seconds, Upstream("The guide shows 1200.")] = 3600.0
    """Maximum wait of explorers for new weights; then they continue with the old ones."""
    memory_dir: Annotated[OwnPath, PATH] = ""
    """rftd only: the folder of the channel `memory`; empty: the machine's memory."""
    group_name: Annotated[str, PLAIN, HARMLESS] = "rollout_weight_sync"
    wait_for_checkpoint: Annotated[bool, FieldEffect("harmless", "ignored, as in Trinity-RFT")] = False


Hours: TypeAlias = Annotated[float, Meta(gt=0, le=1e9), InUnit("h")]
"""Type of a duration in hours."""
Price: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
"""Type of a price, in the currency of the user."""


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """`limits`: rftd only: the experiment pauses when a budget is spent; none = no limit."""

    hours: Hours | None = None
    """Running time, without time in the queue, pauses, and time without a daemon."""
    tokens: Annotated[int, Meta(ge=1, le=10**18), InUnit("tokens")] | None = None
    """Tokens of finished rollouts, prompts and answers; in stages without rollouts, trained tokens."""
    accelerator_hours: Hours | None = None
    """Hours times GPUs of its workers; a worker without a GPU counts as one."""
    cost: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    """Accelerator hours and tokens at the two prices below, in any currency."""
    accelerator_hour_price: Price = 0.0
    """Price of an hour of one accelerator."""
    million_tokens_price: Price = 0.0
    """Price of a million tokens."""
    unseen_days: Annotated[float, Meta(gt=0, le=10**5), InUnit("d")] | None = None
    """Also pause after this time without a view by a person."""
