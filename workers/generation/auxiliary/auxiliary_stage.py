"""The stage of an auxiliary model with a separate engine, for opening and checking the engine."""

from __future__ import annotations

import msgspec

from rftd.streams.spec.engines import AuxiliarySpec
from rftd.streams.spec.spec import ModelSpec, RolloutSpec, StageSpec, TrainerSpec


def auxiliary_stage(spec: AuxiliarySpec, stage: StageSpec) -> StageSpec:
    """Returns a copy of the stage with the auxiliary model in place of the trained one, to open and check
    its engine.
    """
    return msgspec.structs.replace(
        stage,
        model=ModelSpec(
            path=spec.path,
            max_model_len=spec.max_model_len,
            max_prompt_tokens=spec.max_prompt_tokens,
            max_response_tokens=spec.max_response_tokens,
            chat_template=spec.chat_template,
            enable_thinking=spec.enable_thinking,
            trust_remote_code=spec.trust_remote_code,
        ),
        rollout=RolloutSpec(
            engine=spec.engine,
            dtype=spec.dtype,
            threads=spec.threads,
            engine_args=spec.engine_args,
            needs=spec.needs,
            concurrency=spec.concurrency,
        ),
        trainer=TrainerSpec(engine="fake" if spec.engine == "fake" else "torch"),
        taskset=None,
        evals=(),
    )
