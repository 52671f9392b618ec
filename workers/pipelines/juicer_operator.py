"""`data_juicer`: operators of the service Data-Juicer, on experiences and on rows."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError, PipelineError
from rftd.streams.spec.stage_parts import OperatorSpec
from rftd.streams.spec.task_pipeline import JuicerSpec, OperatorRun
from rftd.workers.pipelines.juicer_service import STATS, JuicerService, figures_of
from rftd.workers.pipelines.operator import GroupContext, PipelineExperience
from rftd.workers.pipelines.task_operator import PipelineRow

_ROW = "rftd_row"
"""Column with the place of a row in the request."""
_TEXT = "text"
"""Column judged by Data-Juicer's operators by default."""


class DataJuicerOperator:
    """`data_juicer`: keeps the experiences kept by Data-Juicer's operators, with their figures for later operators."""

    def process(
        self, experiences: Sequence[PipelineExperience]
    ) -> tuple[Sequence[PipelineExperience], Mapping[str, float]]:
        """Raises PipelineError: `ask` is called in place of this method, with the tokenizer."""
        raise PipelineError("data_juicer reads texts, and there is no tokenizer")

    def __init__(
        self, operators: list[dict[str, Any]], np: int = 1, service_config: dict[str, Any] | None = None
    ) -> None:
        """`operators` are Data-Juicer's `process` list, `{name: arguments}`; `service_config` is the section
        `service.data_juicer`, added by rftd.
        """
        spec = converted(service_config or {}, JuicerSpec)
        self._service = JuicerService(spec, operators, processes=np, environ=os.environ)

    @staticmethod
    def check_arguments(
        operators: list[dict[str, Any]], np: int = 1, service_config: dict[str, Any] | None = None
    ) -> None:
        """Raises ConfigError for operators in another form."""
        if not operators or not all(len(operator) == 1 for operator in operators):
            raise ConfigError(
                "each operator of Data-Juicer is one name with its arguments",
                field="operators",
                fix="write operators: [{text_length_filter: {min_len: 5}}]",
            )

    async def ask(
        self, experiences: Sequence[PipelineExperience], context: GroupContext
    ) -> tuple[Sequence[PipelineExperience], Mapping[str, float]]:
        """Returns the kept experiences. Raises PipelineError."""
        if not experiences:
            return experiences, {}
        texts = [_texts(experience, context) for experience in experiences]
        rows = [
            {
                _ROW: experience.rollout,
                _TEXT: response,
                "prompt_text": prompt,
                "response_text": response,
                "reward": experience.reward,
                "metrics": {"reward": experience.reward, **experience.metrics},
            }
            for experience, (prompt, response) in zip(experiences, texts, strict=True)
        ]
        answered, figures = self._service.process(rows)
        by_rollout = {experience.rollout: experience for experience in experiences}
        return [_scored(by_rollout, row) for row in answered], figures


def _texts(experience: PipelineExperience, context: GroupContext) -> tuple[str, str]:
    """Returns the texts of prompt and response."""
    tokens = experience.produced.tokens.view().tolist()
    first = experience.produced.prompt_tokens
    return context.decode(tokens[:first]), context.decode(tokens[first:])


def _scored(by_rollout: Mapping[int, PipelineExperience], row: Mapping[str, Any]) -> PipelineExperience:
    experience = by_rollout.get(row.get(_ROW, -1))
    if experience is None:
        raise PipelineError(f"Data-Juicer returned row {row.get(_ROW)!r}, which it was not given")
    reward = row.get("reward")
    return msgspec.structs.replace(
        experience,
        reward=float(reward) if isinstance(reward, int | float) else experience.reward,
        metrics={**experience.metrics, **figures_of(row)},
    )


def juiced(
    spec: JuicerSpec, operators: Sequence[OperatorSpec], rows: Sequence[PipelineRow], text_key: str, processes: int
) -> tuple[list[PipelineRow], OperatorRun]:
    """Returns the rows kept by Data-Juicer's operators, in order, and the record of the run. Raises PipelineError.

    The text is sent as the column `text` too; columns with plain values are sent and may be changed, others stay here.
    """
    process = [{operator.name: operator.args} for operator in operators]
    service = JuicerService(spec, process, processes=processes, environ=os.environ)
    names = _plain_columns(rows) - {_ROW, _TEXT}
    try:
        sent = [
            {_ROW: index, _TEXT: row.text} | {name: row.columns.get(name) for name in names}
            for index, row in enumerate(rows)
        ]
        answered, figures = service.process(sent)
    finally:
        service.close()
    passed_rows: list[PipelineRow] = []
    for answer in sorted(answered, key=lambda answer: answer.get(_ROW, -1)):
        row_number = answer.get(_ROW)
        if not isinstance(row_number, int) or not 0 <= row_number < len(rows):
            raise PipelineError(f"Data-Juicer returned row {row_number!r}, which it was not given")
        row = rows[row_number]
        changed = {name: answer[name] for name in names if name in row.columns and name in answer}
        text = str(changed.get(text_key, answer.get(_TEXT, row.text)))
        columns = {**row.columns, **changed}
        if text_key not in changed and text != row.text:
            columns[text_key] = text
        extra = {
            name: content
            for name, content in answer.items()
            if name not in row.columns and name not in (_ROW, _TEXT, STATS) and name not in names
        }
        passed_rows.append(
            msgspec.structs.replace(
                row, columns={**columns, **extra}, text=text, stats={**row.stats, **figures_of(answer)}
            )
        )
    digest = hashlib.sha256(msgspec.json.encode([process, service.release], order="deterministic")).hexdigest()
    names_of_run = ", ".join(operator.name for operator in operators)
    program = f"data_juicer {service.release}".rstrip()
    return passed_rows, OperatorRun(
        name=f"{program}: {names_of_run}", digest=digest, rows=len(passed_rows), figures=figures
    )


def _plain_columns(rows: Sequence[PipelineRow]) -> set[str]:
    """Returns the names of the columns whose cells are null or plain values of one kind."""
    kinds: dict[str, set[type]] = {}
    for row in rows:
        for name, cell in row.columns.items():
            if cell is not None:
                kinds.setdefault(name, set()).add(float if type(cell) is int else type(cell))
    return {name for name, types in kinds.items() if len(types) == 1 and types <= {str, float, bool}}
