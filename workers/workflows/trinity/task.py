"""`TrinityTask`: a task with the fields of Trinity-RFT's `Task`, and the two sections of its taskset."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from rftd.streams.spec.spec import TasksetSpec
from rftd.workers.datasets.task import Task


@dataclass
class FormatConfig:
    """The keys of a row, and the texts around its prompt."""

    prompt_type: str = "messages"
    prompt_key: str = "prompt"
    response_key: str = "response"
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    messages_key: str = "message"
    tools_key: str = "tools"
    image_key: str | None = None
    video_key: str | None = None
    reply_prefix: str | None = None
    workflow_key: str = ""
    reward_fn_key: str = ""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    enable_concatenated_multi_turn: bool = False
    chat_template: str | None = None
    enable_thinking: bool | None = None


@dataclass
class GenerationConfig:
    """Sampling settings, in the names of `ModelWrapper.chat`."""

    temperature: float | None = 1.0
    top_p: float | None = 1.0
    top_k: int | None = -1
    logprobs: int | None = 0
    max_tokens: int | None = None
    n: int = 1
    """Answers of one run: 1, because each rollout is a run of its own."""


@dataclass
class TrinityTask:
    """One row with everything a class reads of its taskset; a class may change its own copy."""

    workflow: type | None = None
    repeat_times: int | None = None
    format_args: FormatConfig = field(default_factory=FormatConfig)
    rollout_args: GenerationConfig = field(default_factory=GenerationConfig)
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    reward_fn: type | None = None
    raw_task: dict[str, Any] | None = None
    batch_id: int | str = ""
    task_id: int | str = ""
    index: dict[str, Any] = field(default_factory=dict)
    own_prompt: str | None = None
    """The prompt read by rftd, for a `prompt_key` leading into a column."""
    own_truth: str | None = None

    @property
    def task_desc(self) -> Any:
        """The cell of the prompt."""
        return (self.raw_task or {}).get(self.format_args.prompt_key, self.own_prompt)

    @property
    def truth(self) -> Any:
        """The cell of the right answer."""
        return (self.raw_task or {}).get(self.format_args.response_key, self.own_truth)

    def to_workflow(self, model: Any, auxiliary_models: Any = None) -> Any:
        """Returns an instance of the task's class."""
        assert self.workflow is not None
        return self.workflow(task=self, model=model, auxiliary_models=auxiliary_models)

    def to_dict(self) -> dict[str, Any]:
        """Returns the row."""
        return self.raw_task or {}


def trinity_task(
    task: Task, taskset: TasksetSpec, workflow: type, reward: type | None, *, evaluates: bool
) -> TrinityTask:
    """Returns a task of rftd in Trinity-RFT's form; nothing of it is shared with other rollouts."""
    form = taskset.format
    sampling = taskset.sampling
    return TrinityTask(
        workflow=workflow,
        repeat_times=taskset.repeat_times,
        format_args=FormatConfig(
            prompt_type=form.prompt_type,
            prompt_key=form.prompt_key,
            response_key=form.response_key,
            system_prompt_key=form.system_prompt_key,
            system_prompt=task.system_prompt,
            messages_key=form.messages_key,
            tools_key=form.tools_key,
            reply_prefix=task.reply_prefix,
            workflow_key=form.workflow_key,
            reward_fn_key=form.reward_fn_key,
        ),
        rollout_args=GenerationConfig(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_tokens,
        ),
        workflow_args=copy.deepcopy(taskset.workflow_args),
        reward_fn_args=copy.deepcopy(dict(taskset.reward_args)),
        is_eval=evaluates,
        reward_fn=reward,
        raw_task=copy.deepcopy(task.raw),
        batch_id=task.epoch,
        task_id=task.row,
        index={"index": task.row, "taskset_id": task.taskset},
        own_prompt=task.prompt,
        own_truth=task.truth,
    )
