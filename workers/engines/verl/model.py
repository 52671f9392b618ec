"""verl's FSDP engine with models read by rftd, and outputs in float32.

Import the module after `platform.choose_platform`: verl decides on devices during its import.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rftd.ops.errors import ConfigError
from rftd.workers.engines.learner.model import load_model, recompute_layers
from rftd.workers.engines.verl.wrapping import (
    LossOf,
    Outputs,
    Wrapping,
    distribution_figure,
    read_critic,
    requested_figures,
)
from rftd.workers.models.pretrained import dropout_off

with warnings.catch_warnings():
    # It warns of each engine of its own that is not installed.
    warnings.simplefilter("ignore")
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
    from verl.workers.engine.fsdp.transformer_impl import logger as _LOGGER

from tensordict import TensorDict


class _FsdpBase:
    """Changes to verl's engine common to policies and critics.

    The model is read as on every engine of rftd; verl's optimizer and checkpoint manager are replaced by the stage's.
    """

    wrapping: Wrapping
    """Settings of the model."""
    before: Callable[[Any], None] | None
    """Function changing the complete module before it is spread; None: no change."""
    # What verl's class has.
    train_mode: Any
    eval_mode: Any
    forward_step: Any
    to: Any
    _build_fsdp_module: Any
    _is_offload_param: bool
    _is_offload_optimizer: bool

    def initialize(self) -> None:
        """Reads the model and spreads it over the ranks."""
        self.pass_packed_cu_seqlens = False
        module = self._build_module()
        self.optimizer: Any = None
        self.lr_scheduler = None
        torch.distributed.barrier()
        self.module = self._build_fsdp_module(module)
        # Once, while all of them are shards: after a forward pass those of the root may be whole for a while.
        self.parameters: dict[str, torch.nn.Parameter] = dict(self.module.named_parameters())
        saved = self.module.state_dict().keys()
        self.kept_buffers = {name: value for name, value in self.module.named_buffers() if name in saved}
        self.rest()

    @property
    def outline(self) -> Any:
        """The module with transformers' configuration and class, for descriptions of the model."""
        return self.module

    @property
    def vocabulary_tokens(self) -> int:
        """Number of the model's token ids."""
        rows: int = self.module.get_input_embeddings().num_embeddings
        return rows

    def optimizer_zero_grad(self) -> None:
        """Discards the gradients; called by verl after a failed pass."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Returns weights and persistent buffers by transformers' names, as DTensors under FSDP."""
        weights = {name: value.detach() for name, value in self.parameters.items()}
        return weights | {name: value.detach() for name, value in self.kept_buffers.items()}

    def wake(self) -> None:
        """Moves weights, gradients and optimizer state to the device, as far as they are offloaded."""
        self._move(self.wrapping.device.type)

    def rest(self) -> None:
        """Moves weights, gradients and optimizer state to the host, as far as they are offloaded."""
        self._move("cpu")

    def _move(self, device: str) -> None:
        """Moves the offloaded tensors to the device or the host, and waits for the copies."""
        if self._offloads:
            weights = self._is_offload_param
            self.to(device, model=weights, optimizer=self._is_offload_optimizer, grad=weights)
            self._settle()

    @property
    def _offloads(self) -> bool:
        """True if any tensors are offloaded to the CPU."""
        return self._is_offload_param or self._is_offload_optimizer

    def _settle(self) -> None:
        """Waits for verl's asynchronous copies to the host."""
        # verl copies to pinned memory and does not wait: whoever reads it on the host would find some of it missing.
        if self.wrapping.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    @contextmanager
    def running(self, *, gradient: bool) -> Iterator[None]:
        """Has the weights on the device and dropout off within the context; `gradient`: passes record gradients."""
        mode = self.train_mode(zero_grad_on_exit=False) if gradient else self.eval_mode()
        with mode:
            _without_dropout(self.module)
            with torch.set_grad_enabled(gradient):
                yield
        # The root's weights stay whole after a pass without gradient, and would not follow when shards change.
        self.module.reshard()
        if self._offloads:
            self._settle()

    def outputs_of(self, batch: TensorDict, loss: LossOf | None = None) -> tuple[Tensor, Outputs]:
        """Runs one forward pass; returns the loss (without `loss`, a sum of outputs) and the outputs at each
        position.
        """
        outputs: dict[str, Tensor] = {}

        def loss_of(*, model_output: Mapping[str, Tensor], data: Any, dp_group: Any) -> tuple[Tensor, dict[str, Any]]:
            outputs.update({name: values.values().float() for name, values in model_output.items()})
            # Outside autocast: sums over thousands of tokens stay float32.
            with torch.autocast(self.module_device_type, enabled=False):
                return next(iter(outputs.values())).sum() if loss is None else loss(outputs), {}

        value, _ = self.forward_step(batch, loss_function=loss_of, forward_only=loss is None)
        return value, outputs

    @property
    def module_device_type(self) -> str:
        """Kind of the weights' current device: `cpu` or `cuda`."""
        return next(iter(self.parameters.values())).device.type

    def read_module(self) -> Any:
        """Reads the complete model on the host."""
        raise NotImplementedError

    def _build_module(self) -> Any:
        """Reads the complete model, and prepares it for verl's settings; called by verl."""
        arguments = self.wrapping.arguments
        module = self.read_module()
        if self.before is not None:
            self.before(module)
        if arguments.use_remove_padding or arguments.ulysses_sequence_parallel_size > 1:
            from verl.models.transformers.monkey_patch import apply_monkey_patch

            module.set_attn_implementation("flash_attention_2")
            apply_monkey_patch(
                model=module,
                use_remove_padding=arguments.use_remove_padding,
                ulysses_sp_size=arguments.ulysses_sequence_parallel_size,
            )
        elif module.config._attn_implementation != "eager":  # some models have no other
            module.set_attn_implementation(arguments.attn_implementation)
        if arguments.gradient_checkpointing:
            recompute_layers(module)
        return module


class PolicyModel(_FsdpBase, FSDPEngineWithLMHead):  # type: ignore[misc]
    """A language model in verl's engine, with log-probability and entropy of each position's next token."""

    def read_module(self) -> Any:
        """Reads the complete model in float32 on the host."""
        return load_model(
            Path(self.model_config.path), torch.device("cpu"), trust_remote_code=self.wrapping.trust_remote_code
        )

    def prepare_model_inputs(self, micro_batch: TensorDict) -> Any:
        """Returns verl's inputs. Raises ConfigError for a response with several temperatures in texts without
        padding.
        """
        inputs, beside = super().prepare_model_inputs(micro_batch)
        if "inverse_temperatures" in micro_batch.keys() and "temperature_rmpad" in beside:  # noqa: SIM118
            raise ConfigError(
                "a response has tokens of several temperatures, and texts are computed without padding",
                field="trainer.use_remove_padding",
                fix="write false",
            )
        return inputs, beside

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """Returns verl's columns, computed from logits in float32, and the requested figures of complete
        distributions.
        """
        logits = output.logits.float()
        if "inverse_temperatures" in micro_batch.keys():  # noqa: SIM118
            scale = torch.nested.to_padded_tensor(
                micro_batch["inverse_temperatures"], padding=1.0, output_size=logits.shape[:2]
            )
            logits = logits * scale[..., None]
        output.logits = logits
        columns: dict[str, Tensor] = super().prepare_model_outputs(
            output, output_args, micro_batch, logits_processor_func
        )
        for name in requested_figures(micro_batch):
            columns[name] = self._figure(name, logits, output_args, micro_batch["input_ids"])
        return columns

    def _figure(self, name: str, logits: Tensor, output_args: Any, ids: Any) -> Tensor:
        """Computes a figure of complete distributions at each position  # [P] nested"""
        if "temperature" in output_args:
            inside = torch.arange(logits.shape[1], device=logits.device) < ids.offsets().diff()[:, None]
            temperatures = output_args["temperature"][:, None].expand(inside.shape)[inside]  # [P]
            logits = logits[inside]  # [P, V]
        else:
            temperatures = output_args["temperature_rmpad"]
            logits = logits.squeeze(0)
        whole = distribution_figure(name, logits, temperatures)
        if "temperature" not in output_args:
            whole = self._gather_and_unpad_packed(whole, output_args["pad_size"])
        nested: Tensor = torch.nested.nested_tensor_from_jagged(whole, ids.offsets())
        return nested


class CriticModel(_FsdpBase, FSDPEngineWithValueHead):  # type: ignore[misc]
    """A decoder with one output number at each position, in verl's engine."""

    def read_module(self) -> Any:
        """Reads the folder's decoder on the host, below a head of zeros."""
        return read_critic(Path(self.model_config.path), trust_remote_code=self.wrapping.trust_remote_code)

    def prepare_model_outputs(
        self, output: Any, output_args: Any, micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, Tensor]:
        """Returns verl's columns, computed from outputs in float32."""
        output.logits = output.logits.float()
        columns: dict[str, Tensor] = super().prepare_model_outputs(
            output, output_args, micro_batch, logits_processor_func
        )
        return columns


def open_fsdp(
    folder: Path,
    wrapping: Wrapping,
    *,
    critic: bool = False,
    offload: bool | None = None,
    before: Callable[[Any], None] | None = None,
) -> Any:
    """Opens the model of a folder, spread over all ranks by FSDP2; every rank must call it. `offload` overrides
    `param_offload`.

    `before` changes the complete module on the host of each rank, before it is spread. Raises DataError for a folder
    without a model, ConfigError for unfit settings.
    """
    arguments = wrapping.arguments
    from transformers import AutoConfig

    trusted = {"trust_remote_code": True} if wrapping.trust_remote_code else {}
    described = AutoConfig.from_pretrained(folder, local_files_only=True, **trusted)
    half = "bf16" if wrapping.dtype == "bfloat16" else "fp32"
    model_config = HFModelConfig(
        path=str(folder),
        load_tokenizer=False,
        trust_remote_code=wrapping.trust_remote_code,
        model_type="value_model" if critic else "language_model",
        use_remove_padding=arguments.use_remove_padding,
        enable_gradient_checkpointing=arguments.gradient_checkpointing,
        enable_activation_offload=arguments.activation_offload,
        override_config={"attn_implementation": "sdpa", **dropout_off(described)},
    )
    engine_config = FSDPEngineConfig(
        strategy=arguments.strategy,
        fsdp_size=arguments.fsdp_size,
        reshard_after_forward=arguments.reshard_after_forward,
        forward_prefetch=arguments.forward_prefetch,
        param_offload=arguments.param_offload if offload is None else offload,
        optimizer_offload=arguments.optimizer_offload and offload is None,
        ulysses_sequence_parallel_size=arguments.ulysses_sequence_parallel_size,
        use_no_sync_for_gradient_accumulation=arguments.use_no_sync_for_gradient_accumulation,
        entropy_checkpointing=arguments.entropy_checkpointing,
        model_dtype="fp32",
        mixed_precision={"param_dtype": half, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_torch_compile=False,
    )
    kind = CriticModel if critic else PolicyModel
    model = kind(model_config, engine_config, FSDPOptimizerConfig(lr=0.0), CheckpointConfig())
    model.wrapping = wrapping
    model.before = before
    model.initialize()
    return model


def _without_dropout(module: Any) -> None:
    """Turns dropout off; layers with recomputed states stay in training mode, as required by transformers."""
    module.eval()
    for submodule in module.modules():
        if getattr(submodule, "gradient_checkpointing", False):
            submodule.training = True


_LOGGER.setLevel("WARNING")
