"""Checkpoints as other trainers write them, made by torch in this process: FSDP's files, Megatron's folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def small_model(*, seed: int = 0, tied: bool = False, layers: int = 3) -> Any:
    """A Qwen2 whose queries share keys and values, with biases; no two of its dimensions are equal."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=97,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, value in model.named_parameters():
            if name.endswith("bias"):  # made as zeros, which any place fits
                torch.nn.init.normal_(value)
    return model.eval()


def write_fsdp(actor: Path, model: Any, *, ranks: int) -> None:
    """The files that verl's checkpoint manager writes without a model of Hugging Face's: DTensors, cut by rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    actor.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
            state = {}
            for name, value in model.state_dict().items():
                step = -(-value.shape[0] // ranks)
                local = value[rank * step : (rank + 1) * step].clone()
                state[name] = DTensor.from_local(
                    local, mesh, [Shard(0)], run_check=False, shape=value.shape, stride=value.stride()
                )
            torch.save(state, actor / f"model_world_size_{ranks}_rank_{rank}.pt")
        finally:
            dist.destroy_process_group()
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    model.config.save_pretrained(actor / "huggingface")


def megatron_state(model: Any, *, stacked: bool, padded: int = 3) -> dict[str, Tensor]:
    """The model's tensors as Megatron's core names, fuses and stacks them."""
    config = model.config
    own = model.state_dict()
    groups = config.num_key_value_heads
    layers = []
    for number in range(config.num_hidden_layers):
        at = f"model.layers.{number}."

        def fused(kind: str, at: str = at) -> Tensor:
            heads = [own[f"{at}self_attn.{name}_proj.{kind}"].chunk(groups) for name in "qkv"]
            return torch.cat([part for group in zip(*heads, strict=True) for part in group])

        layers.append(
            {
                "self_attention.linear_qkv.layer_norm_weight": own[at + "input_layernorm.weight"],
                "self_attention.linear_qkv.weight": fused("weight"),
                "self_attention.linear_qkv.bias": fused("bias"),
                "self_attention.linear_proj.weight": own[at + "self_attn.o_proj.weight"],
                "mlp.linear_fc1.layer_norm_weight": own[at + "post_attention_layernorm.weight"],
                "mlp.linear_fc1.weight": torch.cat([own[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up")]),
                "mlp.linear_fc2.weight": own[at + "mlp.down_proj.weight"],
            }
        )
    state = {
        "embedding.word_embeddings.weight": _padded(own["model.embed_tokens.weight"], padded),
        "decoder.final_layernorm.weight": own["model.norm.weight"],
        "output_layer.weight": _padded(own["lm_head.weight"], padded),
    }
    if stacked:
        return state | {f"decoder.layers.{name}": torch.stack([each[name] for each in layers]) for name in layers[0]}
    return state | {
        f"decoder.layers.{number}.{name}": value for number, each in enumerate(layers) for name, value in each.items()
    }


def write_distributed(folder: Path, state: Mapping[str, Any]) -> None:
    """A folder of torch.distributed.checkpoint, of one rank, with entries that are no tensors beside."""
    import torch.distributed.checkpoint as dcp

    extra = {"decoder.layers._extra_state": {"scale": 1}, "optimizer.step": torch.zeros(3)}
    dcp.save({**state, **extra}, checkpoint_id=folder, no_dist=True)


def save_as_verl(rank: int, ranks: int, port: int, run: str, tied: bool) -> None:
    """One rank: the model under FSDP2, saved by verl's own checkpoint manager and by torch's, with Megatron's names."""
    import torch.distributed.checkpoint as dcp
    from omegaconf import OmegaConf
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"tcp://127.0.0.1:{port}")
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
    model = small_model(tied=tied)
    fused = None if tied else megatron_state(model, stacked=True)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    contents = OmegaConf.create({"save_contents": ["model", "optimizer", "extra"], "load_contents": ["model"]})
    manager = FSDPCheckpointManager(model, optimizer, checkpoint_config=contents)
    manager.save_checkpoint(local_path=f"{run}/global_step_1/actor", global_step=1)
    if fused is not None:
        # As tensor parallelism cuts them: some by rows, some by columns, within a stack of layers.
        cut = {"self_attention.linear_proj.weight": 2, "mlp.linear_fc2.weight": 2, "mlp.linear_fc1.weight": 1}
        spread = {
            name: distribute_tensor(value, mesh, [Shard(cut[name.removeprefix("decoder.layers.")])])
            if name.removeprefix("decoder.layers.") in cut
            else distribute_tensor(value, mesh, [Shard(0)])
            for name, value in fused.items()
        }
        dcp.save(spread, checkpoint_id=f"{run}/global_step_2/actor/dist_ckpt")
    dist.destroy_process_group()


def _padded(tensor: Tensor, rows: int) -> Tensor:
    return torch.cat([tensor, torch.zeros(rows, tensor.shape[1])])
