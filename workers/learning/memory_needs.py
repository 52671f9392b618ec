"""The memory needed for training on each device, computed from the models' sizes before anything is loaded.

`training_needs` is a lower bound, for refusals without false alarm. `training_forecast` is the expected peak of a
built-in engine with the longest texts, for the choice of micro-batches.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rftd.streams.spec.engines import MOMENTS
from rftd.streams.spec.schedule import eval_due, kept_versions, publish_due, trainer_interval
from rftd.streams.spec.spec import StageSpec
from rftd.workers.devices.device_memory import Need, elements_of, number_in, settings_of, tensor_names
from rftd.workers.learning.losses.objective import Objective

FIX: Final = (
    "free memory there, or take a smaller model, model.lora_configs, a smaller "
    "trainer.max_token_len_per_gpu, or another device"
)
"""Advice for too little memory."""
RANK_PROCESS: Final = Need("its process", 128 * 1024**2)
"""Memory of a rank's process after importing torch: a lower bound, less than half of the measured size."""
CHUNK_LOGITS: Final = 1 << 24
"""Logits computed at once on a CPU: 64 MiB in float32. The C library never returns freed blocks of up to 32 MiB to the
system, so smaller chunks would accumulate.
"""
CHUNK_LOGITS_GPU: Final = 1 << 27
"""Logits computed at once on a GPU: 512 MiB; each chunk reads and writes the gradient of the complete output layer."""
_ARRAYS_PER_CHUNK: Final = 5
"""Arrays of the logits' size that exist at once during a chunk's gradient: log-probabilities, their exponents, ..."""
_HOLES_SHARE: Final = 0.25
"""Memory lost to fragmentation by the C library on a CPU, as a share of the activations: measured, 12 to 47 %
(docs/benchmarks.md).
"""
_FLOAT32_BYTES: Final = 4
"""Bytes of a float32 number."""
_HALF_BYTES: Final = 2
"""Bytes of a bfloat16 number."""
_DEVICE_CHANNEL: Final = "nccl"
"""Channel that copies weights on the device."""


def _model_needs(stage: StageSpec, base: Path, spread: int) -> list[Need]:
    """Returns the memory of all models of the stage, gradients and optimizer moments included."""
    objective = Objective.of(stage.algorithm, stage.sources, runs=False)
    model_bytes = _FLOAT32_BYTES * elements_of(base) // spread
    learnt_bytes = model_bytes if stage.model.lora is None else 0
    needs = [Need("weights", model_bytes), Need("gradients", learnt_bytes)]
    if stage.algorithm.optimizer.optimizer_type != "sgd":
        needs.append(Need(MOMENTS, 2 * learnt_bytes))
    if objective.needs_reference:
        needs.append(Need("the reference", learnt_bytes))
    if "values" in objective.pass_fields:
        critic_bytes = _FLOAT32_BYTES * elements_of(Path(stage.trainer.critic_path or base)) // spread
        needs.append(Need("the critic with gradients and moments", 4 * critic_bytes))
    if "teacher_logprobs" in objective.pass_fields and stage.trainer.teacher_path:
        teacher_bytes = _FLOAT32_BYTES * elements_of(Path(stage.trainer.teacher_path)) // spread
        needs.append(Need("the teacher", teacher_bytes))
    return needs


def training_needs(stage: StageSpec, base: Path, *, spread: int = 1) -> list[Need]:
    """Returns the least memory of a built-in engine on one device for training the stage from the model in `base`.

    Weights, gradients and moments are float32, divided over `spread` devices. Of activations only the input of each
    layer is counted, for one micro-batch: the minimum even where layers are recomputed.
    """
    layers = Layers.of(base)
    tokens = _tokens(stage)
    size = _HALF_BYTES if stage.trainer.dtype == "bfloat16" else _FLOAT32_BYTES
    return [
        *_model_needs(stage, base, spread),
        Need(_activations(tokens), tokens * layers.count * layers.hidden * size),
    ]


def _tokens(stage: StageSpec) -> int:
    """Returns the tokens of the largest micro-batch."""
    return min(stage.trainer.max_tokens_per_micro_batch, stage.train_batch_size * stage.model.max_model_len)


def _activations(tokens: int) -> str:
    """Returns the name of a need for activations."""
    return f"activations of {tokens} tokens"


def training_forecast(stage: StageSpec, base: Path, *, spread: int = 1, whole_logits: bool = False) -> list[Need]:
    """Returns the expected memory of a built-in engine on one device at the peak of a step with the longest texts.

    In addition to `training_needs`, counts everything autograd stores of each layer, the copies of weights in bfloat16,
    and the arrays of the output layer: of all tokens if `whole_logits`, else of one chunk. A step of one micro-batch
    has its gradients after its activations, so only the larger of the two counts.
    """
    layers = Layers.of(base)
    if not layers.count or not layers.hidden:
        return training_needs(stage, base, spread=spread)
    held_needs = _model_needs(stage, base, spread)
    tokens = _tokens(stage)
    half = stage.trainer.dtype == "bfloat16"
    if half:
        held_needs.append(Need("weights in bfloat16", _HALF_BYTES * elements_of(base) // spread))
    of_layer_bytes = tokens * layers.kept_bytes(half=half, frozen=stage.model.lora is not None, row=_shared_row(stage))
    if stage.model.lora is not None and not stage.trainer.devices:
        # What peft adds a product up from is freed at once, and its memory is not found again before the step ends.
        of_layer_bytes += tokens * layers.outputs * (_HALF_BYTES if half else _FLOAT32_BYTES)
    inputs_bytes = tokens * layers.hidden * _FLOAT32_BYTES
    chunk = CHUNK_LOGITS_GPU if stage.trainer.devices else CHUNK_LOGITS
    rows = tokens if whole_logits else min(tokens, max(1, chunk // max(1, layers.vocabulary)))
    head_bytes = _ARRAYS_PER_CHUNK * rows * layers.vocabulary * _FLOAT32_BYTES
    if stage.model.lora is None:
        head_bytes += layers.vocabulary * layers.hidden * _FLOAT32_BYTES // spread
    if stage.trainer.engine_args.get("gradient_checkpointing"):
        activations_bytes = (layers.count + 4) * inputs_bytes + max(of_layer_bytes, head_bytes)
    else:
        kept_bytes = layers.count * of_layer_bytes + 3 * inputs_bytes
        activations_bytes = int(kept_bytes * (1 if stage.trainer.devices else 1 + _HOLES_SHARE)) + head_bytes
    if stage.train_batch_size * stage.model.max_model_len > tokens:
        return [*held_needs, Need(_activations(tokens), activations_bytes)]
    return [
        Need(f"gradients, or {_activations(tokens)} before", max(need.size_bytes, activations_bytes))
        if need.what == "gradients"
        else need
        for need in held_needs
    ]


def _shared_row(stage: StageSpec) -> int:
    """Returns the length, in tokens, of the torch engine's rows of a prompt and all of its responses; 0 without prompt
    sharing.
    """
    group = stage.algorithm.repeat_times
    if group < 2 or stage.trainer.engine != "torch" or stage.trainer.engine_args.get("prefix_sharing") == "never":
        return 0
    return min(_tokens(stage), stage.model.max_prompt_tokens + group * stage.model.max_response_tokens)


@dataclass(frozen=True, slots=True)
class Layers:
    """The widths of a decoder's layers, read from config.json and the names of tensors; 0 for unknown ones."""

    count: int
    """Number of layers."""
    hidden: int
    """Width of the hidden states."""
    queries: int
    """Total width of the queries of all heads."""
    keys: int
    """Total width of the keys of all key-value heads."""
    inner: int
    """Width of the feed-forward part, over all experts that process a token."""
    gated: bool
    """True if the feed-forward part has a gate: a third matrix."""
    root_mean_square: bool
    """True for RMS norms, whose backward pass stores a scaled copy of the input in addition to the input."""
    normed_queries: bool
    """True if queries and keys are normalised."""
    composed_gelu: bool
    """True for an activation that transformers computes by five products, each stored for the backward pass."""
    vocabulary: int
    """Number of token ids."""

    @classmethod
    def of(cls, folder: Path) -> Layers:
        """Reads the widths of the model in a folder."""
        settings = settings_of(folder)
        hidden = number_in(settings, "hidden_size", "n_embd", "d_model")
        heads = number_in(settings, "num_attention_heads", "n_head")
        head = number_in(settings, "head_dim") or (hidden // heads if heads else 0)
        experts = number_in(settings, "num_experts_per_tok", "num_experts_per_token")
        inner = number_in(settings, "moe_intermediate_size") if experts else 0
        inner = inner or number_in(settings, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size") or 4 * hidden
        names = tensor_names(folder)
        return cls(
            count=number_in(settings, "num_hidden_layers", "n_layer", "num_layers"),
            hidden=hidden,
            queries=heads * head,
            keys=(number_in(settings, "num_key_value_heads") or heads) * head,
            inner=inner * max(1, experts),
            gated=any("gate_" in name or ".w3." in name for name in names),
            root_mean_square="rms_norm_eps" in settings,
            normed_queries=any("q_norm" in name for name in names),
            composed_gelu=settings.get("activation_function", settings.get("hidden_act")) in ("gelu_new", "gelu_fast"),
            vocabulary=number_in(settings, "vocab_size"),
        )

    @property
    def outputs(self) -> int:
        """Total output width of all matrix products of a layer."""
        return self.queries + 2 * self.keys + 2 * self.hidden + (2 if self.gated else 1) * self.inner

    def kept_bytes(self, *, half: bool, frozen: bool, row: int) -> int:
        """Returns the bytes stored by autograd for one token of one layer; in bfloat16 if `half`, except for norms.

        `frozen`: only adapters are trained, not the layer's weights. `row`: length of a row with an attention mask, for
        which keys are repeated for each head; 0: plain causal attention.
        """
        size = _HALF_BYTES if half else _FLOAT32_BYTES
        norms = 2 * self.hidden * (1 if frozen or not self.root_mean_square else 2)
        if self.normed_queries:
            norms += 2 * (self.queries + self.keys)
        # Autocast rounds the input of each product by itself.
        inputs = (5 if half else 2) * self.hidden + self.queries
        attention = self.queries + 2 * (self.queries if row else self.keys) + row
        products = 4 if self.gated else 5 if self.composed_gelu else 2
        return norms * _FLOAT32_BYTES + size * (inputs + attention + products * self.inner)


def held_need(stage: StageSpec, base: Path) -> Need:
    """Returns the memory of published versions stored for explorers on the device of a torch process without ranks, in
    the dtype of rollouts.

    Ranks store versions on the host. Adapters without base weights are not counted.
    """
    arguments = stage.trainer.engine_args
    adapter_alone = stage.model.lora is not None and arguments.get("lora_publish") == "adapter"
    on_device = stage.synchronizer.sync_method == _DEVICE_CHANNEL and not arguments.get("ranks") and not adapter_alone
    count = _held_versions(stage) if on_device else 0
    size = _HALF_BYTES if stage.rollout.dtype == "bfloat16" else _FLOAT32_BYTES
    return Need(f"{count} published versions", count * elements_of(base) * size)


def _held_versions(stage: StageSpec) -> int:
    """Returns the largest number of versions certain to be stored at once in a channel without files.

    Evaluated versions and the last version are files in every channel.
    """
    if stage.kind != "train" and not trainer_interval(stage.synchronizer):
        return 1  # it publishes when it is asked, and nobody knows how often
    channel_versions = kept_versions(stage)
    # A long stage is as its beginning.
    steps = range(min(stage.total_steps, 4 * (channel_versions + 1)))
    due = [step for step in steps if publish_due(stage, step) and not eval_due(stage, step)]
    return max((index + 1 - bisect_left(due, newest - channel_versions) for index, newest in enumerate(due)), default=0)
