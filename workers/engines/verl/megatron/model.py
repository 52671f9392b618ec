"""verl's Megatron engine with weights kept by rftd: opened by Megatron's classes, with transformers' names.

Import the module after `platform.choose_platform`: verl decides on devices during its import.

Without transformer-engine, torch computes the layers, on a CPU or a GPU: texts of a micro-batch are padded at the end,
where causal attention hides the padding from all tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from rftd.ops.errors import ConfigError
from rftd.workers.engines.learner.model import load_model
from rftd.workers.engines.verl.arguments import VerlTrainerArgs
from rftd.workers.engines.verl.cpu_platform import torch_answers_cpu
from rftd.workers.engines.verl.megatron import sizes
from rftd.workers.engines.verl.megatron.tensors import Layout, NamedTensors
from rftd.workers.engines.verl.wrapping import (
    LossOf,
    Outputs,
    Wrapping,
    distribution_figure,
    read_critic,
    requested_figures,
)
from rftd.workers.models.pretrained import outlined_model


class TorchAttention(MegatronModule):  # type: ignore[misc]
    """torch's attention over this rank's heads, in place of Megatron's, which needs CUDA."""

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        """`softmax_scale` is the factor of the scores; None: torch's default."""
        super().__init__(config)
        self._scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Returns the attended values  # query [L, B, heads, W], key and value [L, B, groups, W] -> [L, B, heads *
        W]
        """
        queries, keys, values = (heads.permute(1, 2, 0, 3) for heads in (query, key, value))
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=self._scale, enable_gqa=True
        )
        joined: Tensor = attended.permute(2, 0, 1, 3).flatten(2)
        return joined


def torch_layers(config: Any) -> Any:
    """Returns Megatron's specification of a decoder layer, with modules computed by torch."""
    layers = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=config.qk_layernorm)
    layers.submodules.self_attention.submodules.core_attention = TorchAttention
    return layers


with warnings.catch_warnings():
    # They warn of each engine and each kernel that is not installed.
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from tensordict import TensorDict
    from verl.models.mcore.config_converter import get_hf_rope_theta
    from verl.models.mcore.mbridge import make_value_model
    from verl.models.mcore.util import preprocess_bshd_engine
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine.megatron.transformer_impl import (
        MegatronEngineWithLMHead,
        MegatronEngineWithValueHead,
        unwrap_model,
    )


@dataclass
class _EngineConfig(McoreEngineConfig):  # type: ignore[misc]
    """verl's description of a Megatron engine, extended by float32."""

    exact: bool = False
    """True if forward passes compute in float32."""

    def __post_init__(self) -> None:
        with warnings.catch_warnings():
            # The bridge of verl's older releases is the one that opens models without transformer-engine.
            warnings.simplefilter("ignore")
            super().__post_init__()
        if self.exact:
            object.__setattr__(self, "dtype", "float32")


class _MegatronBase:
    """Changes to verl's engine common to policies and critics.

    Megatron's optimizer, checkpoint manager and gradient wrapper are not used: weights are stored in float32 by
    transformers' names, copied into Megatron's parameters before use, and gradients are moved from there after each
    micro-batch.
    """

    wrapping: Wrapping
    """Settings of the model."""
    value_model = False
    """False for a language model, True for a critic."""
    # What verl's class has.
    bridge: Any
    model_config: Any
    forward_step: Any
    prepare_model_outputs: Any
    _build_tf_config: Any
    get_data_parallel_group: Any
    get_data_parallel_size: Any
    get_data_parallel_rank: Any

    def initialize(self) -> None:
        """Opens the model, one part of each tensor on each rank."""
        # verl gives it to models that see pictures.
        object.__setattr__(self.model_config, "tokenizer", SimpleNamespace(pad_token_id=0))
        on_cpu = self.wrapping.device.type == "cpu"
        half = self.wrapping.dtype == "bfloat16"
        # It prints each of its settings, and warns of kernels that are not installed and of its own older names.
        with self._asking_torch(), warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            self._build_tf_config()
            self.module = self._open_model(on_cpu=on_cpu, half=half)
        self.optimizer: Any = None
        self.lr_scheduler = None
        self.named = NamedTensors.of(
            unwrap_model(self.module[0]), self._layout(), self.read_weights(), self.wrapping.device
        )
        self.parameters: dict[str, torch.nn.Parameter] = self.named.weights

    @property
    def use_remove_padding(self) -> bool:
        """True if texts follow one another without padding."""
        return self.wrapping.arguments.use_remove_padding

    @cached_property
    def outline(self) -> Any:
        """transformers' model of the folder, without memory for its numbers."""
        return outlined_model(Path(self.model_config.path), dtype=torch.float32)

    @property
    def vocabulary_tokens(self) -> int:
        """Number of the model's token ids."""
        tokens: int = self.model_config.hf_config.vocab_size
        return tokens

    def tensors(self) -> dict[str, Tensor]:
        """Returns the weights by transformers' names, as DTensors on several ranks."""
        return {name: value.detach() for name, value in self.parameters.items()}

    def wake(self) -> None:
        """Has no effect: all tensors stay on the device."""

    def rest(self) -> None:
        """Has no effect: all tensors stay on the device."""

    @contextmanager
    def running(self, *, gradient: bool) -> Iterator[None]:
        """Copies the current weights into Megatron's parameters for the context; `gradient`: passes record
        gradients.
        """
        self.named.drop()
        self.named.fill()
        for chunk in self.module:
            # Its dropout is 0, and layers that are to be computed again must be in training.
            chunk.train(gradient)
        with self._asking_torch(), torch.set_grad_enabled(gradient):
            yield

    @contextmanager
    def _gradient_sync_context(self, *, is_last_micro_batch: bool) -> Iterator[None]:
        """Collects the gradients of one micro-batch at the end of the context, and adds them up after the last one;
        called by verl.
        """
        yield
        self.named.collect()
        if is_last_micro_batch:
            self.named.add_up()

    def outputs_of(self, batch: TensorDict, loss: LossOf | None = None) -> tuple[Tensor, Outputs]:
        """Runs one forward pass; returns the loss (without `loss`, a sum of outputs) and the outputs at each
        position.
        """
        output, _ = self.forward_step(iter([batch]), self.module[0], None, _unchanged)
        columns = self.prepare_model_outputs(output, batch).items()
        outputs = {name: values.values().float() for name, values in columns}
        return next(iter(outputs.values())).sum() if loss is None else loss(outputs), outputs

    def prepare_model_inputs(self, batch: TensorDict) -> dict[str, Any]:
        """Returns the model's inputs: tokens only, without images and loss mask."""
        ids = batch["input_ids"]
        return {
            "input_ids": ids,
            "attention_mask": None,
            "loss_mask": ids,
            "multi_modal_inputs": {},
            "routed_experts": None,
        }

    def read_weights(self) -> Mapping[str, Tensor]:
        """Reads the complete weights of the folder on the host, by transformers' names."""
        trusted = self.wrapping.trust_remote_code
        return dict(load_model(Path(self.model_config.path), _HOST, trust_remote_code=trusted).named_parameters())

    def _open_model(self, *, on_cpu: bool, half: bool) -> Any:
        """Builds Megatron's model from the folder's configuration, without weights."""
        config = self.model_config.hf_config
        bridge = self.bridge
        # transformers 5 has it elsewhere than the bridge looks.
        config.rope_theta = get_hf_rope_theta(config)
        bridge._get_gptmodel_args = lambda: {
            "vocab_size": config.vocab_size,
            "max_sequence_length": config.max_position_embeddings,
            "position_embedding_type": "rope",
            "rotary_base": config.rope_theta,
        }
        if not sizes.with_transformer_engine(self.wrapping.arguments):
            bridge.has_vp_stage = True
            bridge._get_transformer_layer_spec = lambda *_, **__: torch_layers(bridge.config)
        return bridge.get_model(
            post_model_creation_callbacks=[make_value_model] if self.value_model else [],
            wrap_with_ddp=False,
            fp16=False,
            bf16=half,
            # Both together: the model stays on the host.
            use_torch_fsdp2=on_cpu,
            use_cpu_initialization=on_cpu,
        )

    def _layout(self) -> Layout:
        """Returns how the decoder's parameters are divided over ranks and fused."""
        config = self.bridge.config
        size = config.tensor_model_parallel_size
        mesh = None
        if dist.get_world_size() > 1:
            shape = (self.get_data_parallel_size(), size)
            # Of Megatron's own groups: others would be made anew for each model and stage.
            mesh = DeviceMesh.from_group(
                [self.get_data_parallel_group(), parallel_state.get_tensor_model_parallel_group()],
                self.wrapping.device.type,
                mesh=torch.arange(dist.get_world_size()).view(shape),
                mesh_dim_names=("share", "tensor"),
            )
            of_torch = (mesh.get_local_rank("share"), mesh.get_local_rank("tensor"))
            of_megatron = (self.get_data_parallel_rank(), parallel_state.get_tensor_model_parallel_rank())
            assert of_torch == of_megatron, f"torch has this rank at {of_torch}, Megatron at {of_megatron}"
        return Layout(
            groups=config.num_query_groups // size,
            head_rows=config.kv_channels,
            sequence_parallel=config.sequence_parallel,
            output="score.weight" if self.value_model else "lm_head.weight",
            mesh=mesh,
        )

    def _asking_torch(self) -> Any:
        """Returns a context in which torch names the CPU as its device, for Megatron; without effect on a GPU."""
        if self.wrapping.device.type != "cpu":
            return nullcontext()
        return torch_answers_cpu()


class MegatronPolicy(_MegatronBase, MegatronEngineWithLMHead):  # type: ignore[misc]
    """A language model in verl's Megatron engine, with log-probability and entropy of each position's next token."""

    def _lm_head_logits_processor(self, logits: Tensor, label: Tensor, temperature: Tensor, **rest: Any) -> Any:
        """Computes verl's columns from logits in float32, with a temperature for each token of a mixed text."""
        logits = logits.float()
        batch = rest["batch"]
        if "inverse_temperatures" in batch.keys():  # noqa: SIM118
            if self.use_remove_padding:
                raise ConfigError(
                    "a response has tokens of several temperatures, and texts are computed without padding",
                    field="trainer.use_remove_padding",
                    fix="write false",
                )
            scale = preprocess_bshd_engine(batch["inverse_temperatures"])[0]
            temperature = temperature / torch.where(scale > 0, scale, 1.0)
        # Before verl's own, which changes the logits in place.
        group = parallel_state.get_tensor_model_parallel_group()
        rows = logits.flatten(0, 1)
        figures = {
            name: distribution_figure(name, rows, temperature.flatten(), group=group).view(logits.shape[:2])
            for name in requested_figures(batch)
        }
        columns: dict[str, Tensor] = super()._lm_head_logits_processor(logits, label, temperature, **rest)
        return columns | figures


class MegatronCritic(_MegatronBase, MegatronEngineWithValueHead):  # type: ignore[misc]
    """A decoder with one output number at each position, in verl's Megatron engine."""

    value_model = True
    """True: the model has one output number at each position."""

    def read_weights(self) -> Mapping[str, Tensor]:
        """Reads the folder's decoder on the host, below a head of zeros."""
        folder = Path(self.model_config.path)
        return dict(read_critic(folder, trust_remote_code=self.wrapping.trust_remote_code).named_parameters())


def open_megatron(folder: Path, wrapping: Wrapping, *, critic: bool = False) -> Any:
    """Opens the model of a folder, divided over the tensor-parallel ranks; every rank must call it.

    Raises DataError for a folder without a model, ConfigError for a model that is not supported.
    """
    arguments = wrapping.arguments
    sizes.check_model(folder, arguments)
    model_config = HFModelConfig(
        path=str(folder),
        load_tokenizer=False,
        trust_remote_code=wrapping.trust_remote_code,
        model_type="value_model" if critic else "language_model",
        use_remove_padding=arguments.use_remove_padding,
    )
    model = (MegatronCritic if critic else MegatronPolicy)(
        model_config, engine_config(arguments, wrapping), McoreOptimizerConfig(lr=0.0), CheckpointConfig()
    )
    model.wrapping = wrapping
    model.initialize()
    return model


def engine_config(arguments: VerlTrainerArgs, wrapping: Wrapping) -> Any:
    """Returns verl's configuration of a Megatron engine for these arguments."""
    return _EngineConfig(
        exact=wrapping.dtype == "float32",
        vanilla_mbridge=True,
        forward_only=True,  # no optimizer of Megatron's
        use_distributed_optimizer=False,
        use_remove_padding=arguments.use_remove_padding,
        tensor_model_parallel_size=arguments.tensor_model_parallel_size,
        sequence_parallel=sizes.cuts_sequences(arguments),
        override_transformer_config=_transformer_config(arguments, on_cpu=wrapping.device.type == "cpu"),
    )


def _transformer_config(arguments: VerlTrainerArgs, *, on_cpu: bool) -> dict[str, Any]:
    """Returns Megatron's settings of the decoder for these arguments."""
    # Kernels that fuse layers with their gradients expect buffers of Megatron's own optimizer.
    settings: dict[str, Any] = {
        "sequence_parallel": sizes.cuts_sequences(arguments),
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "gradient_accumulation_fusion": False,
        "use_cpu_initialization": on_cpu,
    }
    if not sizes.with_transformer_engine(arguments):
        fused = ("masked_softmax_fusion", "bias_dropout_fusion", "bias_activation_fusion", "apply_rope_fusion")
        settings |= {"attention_backend": "local", "persist_layer_norm": False, **dict.fromkeys(fused, False)}
    if arguments.gradient_checkpointing:
        settings |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return settings


def _unchanged(output: Any, **_: Any) -> Any:
    """Returns the model's output unchanged, in place of a loss."""
    return output


_HOST: Final = torch.device("cpu")
"""torch's CPU device."""
