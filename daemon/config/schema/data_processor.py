"""Section `data_processor`: operators over tasks and over experiences."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from rftd.daemon.config.schema.section import Args, Count, Section, Url


class Operator(Section):
    """One operator and its arguments."""

    name: str
    args: Args = {}


class ExperiencePipeline(Section):
    """`data_processor.experience_pipeline`."""

    operators: list[Operator] = []
    save_input: bool = True
    input_save_path: Url = None
    inputs: dict[str, Any] = {}
    output: Any = None


class TaskPipeline(Section):
    """`data_processor.task_pipeline`."""

    operators: list[Operator] = []
    num_process: Count = 4
    config_path: str | None = None
    inputs: list[str] = []
    output: Any = None
    target_fields: list[str] = []
    priority_weights: dict[str, float] = {}
    top_k: Annotated[int, Field(ge=-1)] = -1


class DataProcessor(Section):
    """`data_processor`."""

    experience_pipeline: ExperiencePipeline | None = None
    task_pipeline: TaskPipeline | None = None
