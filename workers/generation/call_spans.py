"""Trace spans of a rollout's parts: calls of the model, rewards, agents and tools; with counts and names, without
texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rftd.ops.tracing import conventions as names
from rftd.ops.tracing.otel_context import joined_by_libraries
from rftd.ops.tracing.tracer import Attribute, SpanKind, TraceSpan, current
from rftd.workers.generation.engine import GenerationRequest
from rftd.workers.generation.response import Response


def model_call(parent: TraceSpan, model: str, request: GenerationRequest) -> TraceSpan:
    """Begins the span of one request to the rollout engine."""
    sampling = request.sampling
    about: dict[str, Attribute] = {
        **names.generative(names.MODEL_CALL),
        names.GEN_AI_MODEL: model,
        names.GEN_AI_TEMPERATURE: sampling.temperature,
        names.GEN_AI_TOP_P: sampling.top_p,
        names.GEN_AI_MAX_TOKENS: sampling.max_tokens,
        names.GEN_AI_INPUT_TOKENS: len(request.prompt),
    }
    return parent.child(f"{names.MODEL_CALL} {model}", attributes=about)


def note_answer(span: TraceSpan, response: Response) -> None:
    """Adds the response's token count, finish reason and last weight version to the span of its request."""
    span.attributes[names.GEN_AI_OUTPUT_TOKENS] = len(response.tokens)
    span.attributes[names.GEN_AI_FINISH_REASONS] = (response.finish,)
    if response.spans:
        span.attributes[names.WEIGHT_VERSION] = response.spans[-1].version


def service_call(name: str) -> AbstractContextManager[TraceSpan | None]:
    """Returns a context with a span around a call of an auxiliary model's service; without a span if the rollout is
    untraced.
    """
    parent = current()
    if parent is None:
        return nullcontext()
    about: dict[str, Attribute] = {**names.generative(names.MODEL_CALL), names.GEN_AI_MODEL: name}
    return parent.child(f"{names.MODEL_CALL} {name}", SpanKind.CLIENT, attributes=about)


def note_usage(span: TraceSpan, input_tokens: int, output_tokens: int) -> None:
    """Adds the token counts reported by a service to the span of the call."""
    span.attributes |= {names.GEN_AI_INPUT_TOKENS: input_tokens, names.GEN_AI_OUTPUT_TOKENS: output_tokens}


def reward_span(parent: TraceSpan, name: str) -> TraceSpan:
    """Begins the span of one reward, named after the reward."""
    return parent.child(f"{names.REWARD} {name}", attributes={names.REWARD_NAME: name})


@contextmanager
def agent_run(name: str) -> Iterator[None]:
    """Runs an agent program's block in a span, the parent of the program's own spans; without a span if the rollout is
    untraced.
    """
    parent = current()
    if parent is None:
        yield
        return
    about: dict[str, Attribute] = {**names.generative(names.AGENT), names.GEN_AI_AGENT: name}
    with parent.child(f"{names.AGENT} {name}", attributes=about) as span, joined_by_libraries(span):
        yield


def tool_call(name: str) -> AbstractContextManager[object]:
    """Returns a context with a span around a workflow's call of a tool; without a span if the rollout is untraced."""
    parent = current()
    if parent is None:
        return nullcontext()
    about: dict[str, Attribute] = {**names.generative(names.TOOL), names.GEN_AI_TOOL: name}
    return parent.child(f"{names.TOOL} {name}", attributes=about)
