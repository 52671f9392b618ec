"""Every name of a span and of an attribute, in one place.

OpenTelemetry's own conventions for messaging and for generative models are still in development: names as of
semantic-conventions 1.44 and semantic-conventions-genai of August 2026. Attributes hold only ids, names, counts and
durations; never a prompt, an answer, a header or an error's text.
"""

from __future__ import annotations

from typing import Final

# Spans of rftd.
ROLLOUT: Final = "invoke_workflow"
"""Name of the span of one rollout with all its attempts, followed by the workflow's name."""
AGENT: Final = "invoke_agent"
"""Name of the span of a rollout's agent."""
TOOL: Final = "execute_tool"
"""Name of the span of a tool call."""
MODEL_CALL: Final = "chat"
"""Name of the span of one request to a model, followed by the model's name (`AGENT` and `TOOL` likewise by theirs)."""
REWARD: Final = "reward"
"""Name of the span of a reward."""
PLAN_BATCH: Final = "plan_batch"
"""Name of the span of a planned batch."""
PAUSE: Final = "pause_experiment"
"""Name of the span of a pause."""
RESUME: Final = "resume_experiment"
"""Name of the span of a resume."""
FAIL: Final = "fail_experiment"
"""Name of the span of a failure."""
TRAIN_STEP: Final = "train_step"
"""Name of the span of a training step."""
ASSEMBLE: Final = "assemble_batch"
"""Name of the span of reading a batch."""
EXECUTE: Final = "execute_step"
"""Name of the span of computing a step."""
PUBLISH_WEIGHTS: Final = "publish_weights"
"""Name of the span of publishing weights."""
LOAD_WEIGHTS: Final = "load_weights"
"""Name of the span of loading weights."""
CHECKPOINT: Final = "save_checkpoint"
"""Name of the span of saving a checkpoint."""

# Attributes of rftd.
EXPERIMENT_ID: Final = "rftd.experiment.id"
GROUP_ID: Final = "rftd.group.id"
LEASE_ID: Final = "rftd.lease.id"
ROLLOUT_ID: Final = "rftd.rollout.id"
ROLLOUT_NUMBER: Final = "rftd.rollout.number"
EXPERIENCE_ID: Final = "rftd.experience.id"
BATCH_ID: Final = "rftd.batch.id"
EVAL_ID: Final = "rftd.eval.id"
ATTEMPT: Final = "rftd.attempt"
CAUSE: Final = "rftd.cause"
"""Attribute with the obstacle for which an experiment is paused; the cause of a failure is in `error.type`."""
STAGE: Final = "rftd.stage"
STEP: Final = "rftd.step"
GENERATION: Final = "rftd.generation"
WEIGHT_VERSION: Final = "rftd.weight.version"
WEIGHT_METHOD: Final = "rftd.weight.method"
SIZE_BYTES: Final = "rftd.size_bytes"
TOKENS: Final = "rftd.tokens"
ITEMS: Final = "rftd.items"
"""Attribute with the number of a batch's items."""
LINKS_LEFT_OUT: Final = "rftd.links_left_out"
"""Attribute with the number of links beyond the limit."""
REWARD_NAME: Final = "rftd.reward.name"
REWARD_VALUE: Final = "rftd.reward"
FINISH: Final = "rftd.finish"
SKIPPED: Final = "rftd.step.skipped"

# OpenTelemetry: general
ERROR_TYPE: Final = "error.type"
CANCELLED: Final = "cancelled"
"""Value of `error.type` for cancelled work; rftd's errors have their codes, others their class names."""
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
SERVICE_INSTANCE_ID: Final = "service.instance.id"

# OpenTelemetry: HTTP
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"

# OpenTelemetry: messaging
MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_PARTITION: Final = "messaging.destination.partition.id"
SYSTEM: Final = "rftd"
"""Value of `messaging.system` for rftd's log, with any backend."""

# OpenTelemetry: generative models
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_AGENT: Final = "gen_ai.agent.name"
GEN_AI_WORKFLOW: Final = "gen_ai.workflow.name"
GEN_AI_TOOL: Final = "gen_ai.tool.name"
GEN_AI_MODEL: Final = "gen_ai.request.model"
GEN_AI_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"


_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
"""Methods of HTTP named in spans; others are `_OTHER`."""


def http_method(method: str) -> str:
    """Returns the method of a request, or `_OTHER` for a non-standard one, to keep arbitrary texts out."""
    return method if method in _METHODS else "_OTHER"


def messaging(operation: str, stream: str, partition: int) -> dict[str, str]:
    """Returns the attributes of a span for `operation` (create, send, process) on a record of a stream."""
    return {
        MESSAGING_SYSTEM: SYSTEM,
        MESSAGING_OPERATION_NAME: operation,
        MESSAGING_OPERATION_TYPE: operation,
        MESSAGING_DESTINATION: stream,
        MESSAGING_PARTITION: str(partition),
    }


def generative(operation: str) -> dict[str, str]:
    """Returns the attributes common to spans of a model, an agent or a tool; `operation` is one of OpenTelemetry's."""
    return {GEN_AI_OPERATION: operation, GEN_AI_PROVIDER: SYSTEM}
