"""The demo's task in a bare loop, without a log, to choose its settings.

Sums of a two-digit and a one-digit number, 30 % held out. SFT imitates a pupil who adds 0, 1 and 2 without fail and is
otherwise right one time in four: of four answers to such a sum one is right, two are one too many and one is two too
many. So SFT ends where its data ends, at 0.3 greedily and 0.35 to 0.4 sampled, whatever the seed, and only the reward
can lead further: GRPO does. Rollouts come from weights `--staleness` versions old, as in the asynchronous demo.
Run: python -P tests/bench/demo_task.py --seeds 1 2 3 4
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent))

from figures import read_options, tell

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec
from rftd.streams.spec.stage_parts import CorrectionPart, CorrectionSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.algorithms.advantages import ClosedGroup, advantages_of
from rftd.workers.learning.algorithms.registry import lookup
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.models.tiny_model import make_tiny_model

MAX_TOKENS = 5


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be varied."""

    sft_steps: int
    sft_lr: float
    sft_batch: int
    grpo_scheduler: str
    offsets: tuple[int, ...]
    sure: int
    grpo_steps: int
    grpo_lr: float
    beta2: float
    warmup_steps: int
    weight_decay: float
    prompts: int
    repeat: int
    staleness: int
    target: float
    correction: str = "none"
    """Of tokens from older weights: a registered one, by the log-probabilities of the step's beginning."""


def make_stage(kind: str, settings: Settings) -> StageSpec:
    """The SFT or the GRPO stage."""
    sft = kind == "sft"
    found = lookup(kind)
    return StageSpec(
        name=kind,
        kind="train" if sft else "both",
        total_steps=settings.sft_steps if sft else settings.grpo_steps,
        batch_size=settings.prompts,
        train_batch_size=settings.sft_batch if sft else settings.prompts * settings.repeat,
        algorithm=AlgorithmSpec(
            kind=kind,
            advantage=found.advantage,
            policy_loss=found.policy_loss,
            policy_loss_args=found.policy_loss_args,
            entropy_loss=found.entropy_loss,
            correction=CorrectionSpec()
            if sft or settings.correction == "none"
            else CorrectionSpec(old_logprobs="recomputed", parts=(CorrectionPart(kind=settings.correction),)),
            optimizer=Optimizer(
                lr=settings.sft_lr if sft else settings.grpo_lr,
                betas=(0.9, 0.999 if sft else settings.beta2),
                weight_decay=settings.weight_decay,
                lr_warmup_steps=0 if sft else settings.warmup_steps,
                lr_scheduler_type="constant" if sft else settings.grpo_scheduler,
                min_lr_ratio=0.1,
                decay_all=True,
            ),
        ),
        model=ModelSpec(path="", max_model_len=32, max_prompt_tokens=16, max_response_tokens=MAX_TOKENS),
    )


class Sums:
    """900 sums, split by a fixed permutation: 630 to train on, 270 held out."""

    def __init__(self, tokenizer: Any) -> None:
        pairs = [(a, b) for a in range(10, 100) for b in range(10)]
        order = np.random.default_rng(20).permutation(len(pairs))
        self.eos = int(tokenizer.eos_token_id)
        self.prompts = np.array(
            [
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": f"{a}+{b}="}], add_generation_prompt=True, return_dict=False
                )
                for a, b in pairs
            ]
        )
        self._second = [b for _, b in pairs]
        self._values = [a + b for a, b in pairs]
        self._tokenizer = tokenizer
        self.answers = [self.answer(row, 0) for row in range(len(pairs))]
        self.train, self.held_out = order[:630], order[630:]

    def offsets(self, row: int, settings: Settings) -> tuple[int, ...]:
        """How far off the answers of the SFT rows of one sum are: none up to `sure`, else a spread."""
        return (0,) * len(settings.offsets) if self._second[row] <= settings.sure else settings.offsets

    def answer(self, row: int, off: int) -> list[int]:
        """The sum, off by so much, and the end token."""
        return [*self._tokenizer.encode(str(self._values[row] + off), add_special_tokens=False), self.eos]


@torch.no_grad()
def sample(model: Any, prompts: NDArray[Any], eos: int, generator: torch.Generator | None) -> tuple[Any, Any]:
    """Responses, cut after the end token by `lengths`, and their log-probabilities; greedy without a generator."""
    ids = torch.from_numpy(prompts)
    logprobs, cache, step_ids = [], None, ids
    for _ in range(MAX_TOKENS):
        out = model(input_ids=step_ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        scores = torch.log_softmax(out.logits[:, -1].float(), -1)
        step_ids = (
            scores.argmax(-1, keepdim=True)
            if generator is None
            else torch.multinomial(scores.exp(), 1, generator=generator)
        )
        logprobs.append(scores.gather(1, step_ids))
        ids = torch.cat([ids, step_ids], 1)
        if bool((ids[:, prompts.shape[1] :] == eos).any(1).all()):
            break
    return ids[:, prompts.shape[1] :].numpy(), torch.cat(logprobs, 1).numpy()


def cut(row: NDArray[Any], eos: int) -> list[int]:
    """The response up to its end token."""
    tokens: list[int] = row.tolist()
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def accuracy(model: Any, sums: Sums, rows: NDArray[Any], generator: torch.Generator | None = None) -> float:
    """Share of right answers."""
    made, _ = sample(model, sums.prompts[rows], sums.eos, generator)
    return float(np.mean([cut(one, sums.eos) == sums.answers[row] for one, row in zip(made, rows, strict=True)]))


def sft(engine: TorchTrainerEngine, sums: Sums, settings: Settings) -> None:
    """The warm-up."""
    order = np.empty((0, 2), np.int64)
    table = np.array([(row, off) for row in sums.train for off in sums.offsets(int(row), settings)])
    for step in range(1, settings.sft_steps + 1):
        while len(order) < settings.sft_batch:
            order = np.concatenate([order, table])
        rows, order = order[: settings.sft_batch], order[settings.sft_batch :]
        samples = []
        for row, off in rows:
            answer = sums.answer(int(row), int(off))
            samples.append(
                TrainSample(
                    tokens=np.array([*sums.prompts[row], *answer], np.uint32),
                    prompt_tokens=sums.prompts.shape[1],
                    loss_mask=np.ones(len(answer), np.uint8),
                )
            )
        engine.train(TrainBatch(step=step, stage_step=step, samples=samples))


def rollouts(model: Any, sums: Sums, rows: NDArray[Any], settings: Settings, generator: torch.Generator) -> Any:
    """One batch of scored groups."""
    repeated = np.repeat(rows, settings.repeat)
    made, logprobs = sample(model, sums.prompts[repeated], sums.eos, generator)
    responses = [cut(one, sums.eos) for one in made]
    rewards = np.array(
        [response == sums.answers[row] for response, row in zip(responses, repeated, strict=True)], np.float32
    )
    algorithm = make_stage("grpo", settings).algorithm
    groups = [ClosedGroup(rewards=group) for group in rewards.reshape(len(rows), -1)]
    advantages = np.concatenate(advantages_of(algorithm, groups))
    samples = [
        TrainSample(
            tokens=np.array([*sums.prompts[row], *response], np.uint32),
            prompt_tokens=sums.prompts.shape[1],
            loss_mask=np.ones(len(response), np.uint8),
            logprobs=logprobs[number, : len(response)].astype(np.float32),
            advantages=np.full(len(response), advantages[number], np.float32),
            reward=float(rewards[number]),
            group=number // settings.repeat,
        )
        for number, (row, response) in enumerate(zip(repeated, responses, strict=True))
    ]
    return samples, float(rewards.mean())


def open_engine(settings: Settings, model: Path, folder: Path) -> TorchTrainerEngine:
    """An engine on a model's weights, for both stages."""
    stages = (make_stage("sft", settings), make_stage("grpo", settings))
    engine = TorchTrainerEngine(threads=1)
    engine.open(ExperimentSpec(project="p", name="n", job_dir=str(folder), stages=stages, config={}), str(model))
    return engine


def take(actor: Any, weights: dict[str, Any]) -> None:
    """The actor answers with these weights from now on."""
    for name, parameter in actor.named_parameters():
        parameter.data.copy_(weights[name])


def grpo(
    engine: TorchTrainerEngine, actor: Any, sums: Sums, seed: int, settings: Settings, generator: torch.Generator
) -> dict[str, float]:
    """The stage after the warm-up, on rollouts of weights `staleness` versions old; what it reached and when."""
    engine.begin_stage(make_stage("grpo", settings))
    rng, order = np.random.default_rng(seed), np.empty(0, np.int64)
    versions: deque[dict[str, Any]] = deque(maxlen=settings.staleness + 1)
    recent: deque[float] = deque(maxlen=5)
    began, reached_s, reached_step, train_s = time.perf_counter(), -1.0, -1, 0.0
    for step in range(1, settings.grpo_steps + 1):
        while len(order) < settings.prompts:
            order = np.concatenate([order, rng.permutation(sums.train)])
        rows, order = order[: settings.prompts], order[settings.prompts :]
        versions.append(copy.deepcopy(engine.tensors()))
        take(actor, versions[0])
        samples, reward = rollouts(actor, sums, rows, settings, generator)
        recent.append(reward)
        if reached_step < 0 and len(recent) == 5 and float(np.mean(recent)) > settings.target:
            reached_s, reached_step = time.perf_counter() - began, step
        started = time.perf_counter()
        engine.train(TrainBatch(step=settings.sft_steps + step, stage_step=step, samples=samples))
        engine.checksum()
        train_s += time.perf_counter() - started
    total_s = time.perf_counter() - began
    take(actor, engine.tensors())
    return {
        "reached_step": reached_step,
        "reached_s": reached_s,
        "reward": float(np.mean(recent)) if recent else 0.0,
        "held_out": accuracy(actor, sums, sums.held_out),
        "grpo_s": total_s,
        "train_ms": 1e3 * train_s / max(1, settings.grpo_steps),
    }


def run(seed: int, settings: Settings, folder: Path) -> dict[str, float]:
    """One seed, from nothing to the end."""
    base = make_tiny_model(folder / f"model-{seed}", seed=seed)
    sums = Sums(AutoTokenizer.from_pretrained(base))
    engine = open_engine(settings, base, folder)
    generator = torch.Generator().manual_seed(seed)
    actor: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    began = time.perf_counter()
    engine.begin_stage(make_stage("sft", settings))
    sft(engine, sums, settings)
    sft_s = time.perf_counter() - began
    take(actor, engine.tensors())
    before = accuracy(actor, sums, sums.held_out)
    sampled = accuracy(actor, sums, sums.held_out, generator)
    reached = grpo(engine, actor, sums, seed, settings, generator)
    return {
        "seed": seed,
        "sft_s": sft_s,
        "sft_greedy": before,
        "sft_sampled": sampled,
        **reached,
        "gain": reached["held_out"] - before,
    }


OPTIONS: Final[dict[str, Any]] = {
    **{"sft_steps": 600, "sft_lr": 3e-3, "sft_batch": 128, "offsets": [0, 1, 1, 2], "sure": 2},
    **{"grpo_scheduler": "cosine", "grpo_steps": 300, "grpo_lr": 1e-3, "beta2": 0.999, "warmup_steps": 0},
    **{"weight_decay": 0.01, "prompts": 32, "repeat": 8, "staleness": 2, "target": 0.9},
}
"""The options of `Settings`, with the demo's values."""


def main() -> None:
    """Prints one line for each seed."""
    options = vars(read_options(__doc__, seeds=[1, 2, 3, 4], **OPTIONS))
    seeds = options.pop("seeds")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            result = run(seed, Settings(**{**options, "offsets": tuple(options["offsets"])}), Path(folder))
            tell({name: round(value, 3) for name, value in result.items()})


if __name__ == "__main__":
    main()
