"""Options of verl's engine, each seen on every rank: what it trained, and by what it can be told that it acted.

Ranks are forked from one process that has imported torch, and open engine after engine.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from synthetic.models.algorithm_batches import make_algorithm, make_samples
from synthetic.models.engine_parity import MODEL_TOKENS
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import checkpoint

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.ranks import torch_shards
from rftd.workers.engines.verl.engine import VerlTrainerEngine
from rftd.workers.learning.engine import TrainBatch

STEPS: Final = 2
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "plain": {},
    "recomputed": {"gradient_checkpointing": True},
    "copies": {"fsdp_size": 2},
    "kept whole": {"reshard_after_forward": False},
    "summed each time": {"use_no_sync_for_gradient_accumulation": False},
    "on the host": {"param_offload": True, "optimizer_offload": True, "ref_param_offload": True},
    "by responses": {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1},
    "entropies again": {"entropy_checkpointing": True},
    "without padding": {"use_remove_padding": True},
    "in sequences": {"ulysses_sequence_parallel_size": 2, "use_remove_padding": True},
}
"""The arguments of the engine by what they are called here; `bfloat16` is one of the trainer's."""
STRATEGIES: Final = ("unrestricted", "single_thread", "single_process", "single_node")
NODE_RANKS: Final = 2


class Seen(msgspec.Struct, kw_only=True):
    """One rank's sight of one option."""

    losses: list[float]
    norms: list[float]
    checksum: str
    own_rows: int
    """The rows of the embedding that this rank holds."""
    layer_passes: int
    """The forward passes of the first layer."""
    layer_dtype: str
    """The dtype of what comes out of it."""
    gradient_dtype: str
    whole_layers: int
    """The times that its weights were still whole when the second layer began."""
    calls: dict[str, int]
    """The sums of gradients, and the moves between host and device, by name; and `away`: the steps of an optimizer that
    were taken while weights or moments waited on the host."""
    places: list[int]
    """The numbers of places of each pass, on this rank, padding included."""


class Wrote(msgspec.Struct, kw_only=True):
    """When one rank wrote a file of a checkpoint, by the clock of all processes of the machine."""

    began_ns: int
    ended_ns: int


class Report(msgspec.Struct, kw_only=True):
    """All that one rank saw."""

    options: dict[str, Seen]
    wrote: dict[str, list[Wrote]]


def reports(model: Path, folder: Path, *, ranks: int) -> list[Report]:
    """What each of `ranks` ranks sees, in their order; `folder` gets their checkpoints, by strategy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What they all import is imported once.
    mp.set_forkserver_preload([__name__, "transformers.models.qwen2.modeling_qwen2"])  # type: ignore[attr-defined]
    start: Any = mp.start_processes
    start(_look, (ranks, port, str(model), str(folder)), nprocs=ranks, start_method="forkserver")
    return [msgspec.msgpack.decode((folder / f"{rank}.seen").read_bytes(), type=Report) for rank in range(ranks)]


def _look(rank: int, ranks: int, port: int, model: str, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(NODE_RANKS)
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"tcp://127.0.0.1:{port}")
    seen = {name: _seen(Path(model), arguments) for name, arguments in OPTIONS.items()}
    seen["bfloat16"] = _seen(Path(model), {}, dtype="bfloat16")
    report = Report(options=seen, wrote=_wrote(Path(model), Path(folder)))
    (Path(folder) / f"{rank}.seen").write_bytes(msgspec.msgpack.encode(report))
    dist.destroy_process_group()


def _stage(model: Path, arguments: Mapping[str, Any], dtype: str = "float32") -> StageSpec:
    """PPO with a critic and a reference, in micro-batches so small that every rank has several."""
    optimizer = Optimizer(lr=1e-3, clip_grad=1.0, decay_all=True)
    algorithm = msgspec.structs.replace(
        make_algorithm("ppo"), kl_loss="k2", kl_loss_args={"kl_coef": 0.01}, optimizer=optimizer
    )
    return StageSpec(
        name="s",
        kind="both",
        total_steps=STEPS,
        batch_size=4,
        train_batch_size=12,
        algorithm=algorithm,
        model=ModelSpec(path=str(model), max_model_len=MODEL_TOKENS, max_prompt_tokens=32, max_response_tokens=32),
        trainer=TrainerSpec(
            engine="verl", max_tokens_per_micro_batch=24, dtype=dtype, engine_args={"device": "cpu", **arguments}
        ),
    )


def _opened(stage: StageSpec) -> Any:
    engine: Any = VerlTrainerEngine()
    engine.open(ExperimentSpec(project="p", name="n", job_dir="/nowhere", stages=(stage,), config={}), stage.model.path)
    engine.begin_stage(stage)
    return engine


def _seen(model: Path, arguments: Mapping[str, Any], dtype: str = "float32") -> Seen:
    stage = _stage(model, arguments, dtype)
    calls: Counter[str] = Counter()
    layers: list[str] = []
    whole: list[bool] = []
    places: list[int] = []
    results = []
    with ExitStack() as around:
        around.enter_context(_calls_counted(calls))
        if arguments.get("use_remove_padding"):
            around.enter_context(_attention_without_padding())
        engine = _opened(stage)
        module = engine._policy.model.module
        first, second = module.model.layers[:2]

        def after_first(_: Any, __: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            layers.append(str(states.dtype))

        def before_second(_: Any, inputs: Any) -> None:
            whole.append(not isinstance(first.mlp.up_proj.weight, DTensor))
            places.append(inputs[0].shape[:-1].numel())

        # Of a layer that is computed again, what lies in it is.
        first.mlp.register_forward_hook(after_first)
        second.register_forward_pre_hook(before_second)
        for step in range(1, STEPS + 1):
            samples = make_samples("ppo", drift=0.1 * step)
            results.append(engine.train(TrainBatch(step=step, stage_step=step, samples=samples)))
    embedding = engine._policy.model.parameters["model.embed_tokens.weight"]
    gradients = {parameter.dtype for parameter in engine._policy.parameters().values()}
    seen = Seen(
        losses=[each.metrics["actor/final_loss"] for each in results],
        norms=[each.metrics["actor/grad_norm"] for each in results],
        checksum=engine.checksum(),
        own_rows=embedding.to_local().shape[0],
        layer_passes=len(layers),
        layer_dtype=layers[-1],
        gradient_dtype=str(*gradients),
        whole_layers=sum(whole),
        calls=dict(calls),
        places=places,
    )
    engine.close()
    return seen


@contextmanager
def _calls_counted(calls: Counter[str]) -> Iterator[None]:
    """Counts the sums of gradients, and the moves of weights and moments between device and host."""
    from rftd.workers.engines.verl import platform

    platform.choose_platform(torch.device("cpu"), field="")
    from verl.workers.engine import base
    from verl.workers.engine.fsdp import transformer_impl

    from rftd.workers.engines.verl import model as verl_model

    names = ("load_fsdp_model_to_gpu", "offload_fsdp_model_to_cpu", "load_fsdp_optimizer", "offload_fsdp_optimizer")
    asleep = list[Any]()
    leave, wake = base.BaseEngineCtx.__exit__, verl_model.PolicyModel.wake

    def left(self: Any, *given: Any) -> Any:
        asleep.append(self.engine)
        return leave(self, *given)

    def woken(self: Any) -> None:
        asleep[:] = [each for each in asleep if each is not self]
        wake(self)

    def stepped(optimizer: Any, *_: Any) -> None:
        calls["away"] += any(each.optimizer is optimizer for each in asleep)

    with ExitStack() as patches:
        patches.callback(register_optimizer_step_pre_hook(stepped).remove)
        patches.enter_context(mock.patch.object(base.BaseEngineCtx, "__exit__", left))
        for kind in (verl_model.PolicyModel, verl_model.CriticModel):
            patches.enter_context(mock.patch.object(kind, "wake", woken))
        for place, name in (
            (dist, "reduce_scatter_single"),
            (checkpoint, "checkpoint"),
            *((transformer_impl, name) for name in names),
        ):
            real: Callable[..., Any] = getattr(place, name)

            def counted(*given: Any, name: str = name, real: Callable[..., Any] = real, **named: Any) -> Any:
                calls[name] += 1
                return real(*given, **named)

            patches.enter_context(mock.patch.object(place, name, counted))
        yield


@contextmanager
def _attention_without_padding() -> Iterator[None]:
    """Stands in for flash-attn, which needs a GPU: texts follow one another, and none sees those before it."""
    from transformers import PreTrainedModel
    from verl.models.transformers import monkey_patch

    def attention(
        query: Tensor, key: Tensor, value: Tensor, mask: Any, length: int, *_: Any, position_ids: Tensor, **named: Any
    ) -> Tensor:
        texts = torch.cumsum((position_ids == 0).int(), dim=1)[0]  # [P]
        sees = (texts[:, None] == texts[None, :]).tril()
        times = query.shape[2] // key.shape[2]
        heads = [each.transpose(1, 2) for each in (query, key, value)]
        heads[1:] = [each.repeat_interleave(times, dim=1) for each in heads[1:]]
        found = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=sees)
        return found.transpose(1, 2)

    def take(module: Any, name: str) -> None:
        # Set without a look for the package.
        module.config._attn_implementation_internal = name

    with (
        mock.patch.object(monkey_patch, "_flash_attention_forward", attention),
        mock.patch.object(PreTrainedModel, "set_attn_implementation", take),
    ):
        yield


def _wrote(model: Path, folder: Path) -> dict[str, list[Wrote]]:
    """The files of a checkpoint by each strategy."""
    first = _stage(model, {})
    real = torch_shards.write_part
    found: dict[str, list[Wrote]] = {strategy: [] for strategy in STRATEGIES}
    engine: Any = None
    for strategy, times in found.items():
        # Without critic and reference: there is less to open.
        sft = msgspec.structs.replace(
            first,
            kind="train",
            algorithm=msgspec.structs.replace(make_algorithm("sft"), optimizer=first.algorithm.optimizer),
            trainer=msgspec.structs.replace(
                first.trainer, engine_args={**first.trainer.engine_args, "save_strategy": strategy}
            ),
        )
        if engine is None:
            engine = _opened(sft)
            engine.train(TrainBatch(step=1, stage_step=1, samples=make_samples("sft", drift=0.0)))
        else:
            engine.load(folder / STRATEGIES[0], sft)
        # Passes only if so many ranks are within at once.
        waits = {"unrestricted": dist.barrier, "single_node": partial(dist.barrier, group=_node())}.get(strategy)

        def timed(*given: Any, waits: Any = waits, times: list[Wrote] = times, **named: Any) -> Any:
            began_ns = time.monotonic_ns()
            if waits is not None:
                waits()
            wrote = real(*given, **named)
            times.append(Wrote(began_ns=began_ns, ended_ns=time.monotonic_ns()))
            return wrote

        with mock.patch.object(torch_shards, "write_part", timed):
            engine.save(folder / strategy, hf=False)
        dist.barrier()  # as a controller waits for all of them
    engine.close()
    return found


def _node() -> Any:
    """The group of this rank's node; all ranks make all groups."""
    ranks = dist.get_world_size()
    groups = [
        dist.new_group(list(range(first, min(first + NODE_RANKS, ranks)))) for first in range(0, ranks, NODE_RANKS)
    ]
    return groups[dist.get_rank() // NODE_RANKS]
