"""Each algorithm type trains what it is for, on the demo's task: sixty steps, three seeds; prints JSON.

python -P tests/bench/algorithms_learn.py [--seeds 1 2 3] [--steps 60] [--kinds grpo ...] [options of demo_task.py]

From one warm-up per seed, with the type's own parts and defaults. Rollout types: mean reward of the first five batches
and of the last five, and held-out greedy accuracy before and after. Distillation: the same, from a teacher that GRPO
made of the same warm-up, without a reward. mix: a quarter of each batch are right answers. sft: held-out accuracy, by
right answers. Preferences (dpo and its like): a right answer against one that is one too many; the share of pairs told
apart. kto_labels: kto, of each sum either the right answer or the other one, with its label; how much more the right
ones have gained. cpt: the loss on whole texts.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent))

from demo_task import MAX_TOKENS, OPTIONS, Settings, Sums, accuracy, cut, make_stage, open_engine, sample, sft, take
from demo_task import grpo as train_grpo
from figures import median_of, note, read_options, tell

from rftd.streams.spec.sections import Optimizer
from rftd.streams.spec.spec import AlgorithmSpec, ExperimentSpec, ModelSpec, StageSpec, TrainerSpec
from rftd.workers.engines.torch.trainer.engine import TorchTrainerEngine
from rftd.workers.learning.algorithms.advantages import ClosedGroup, advantages_of
from rftd.workers.learning.algorithms.definition import AlgorithmDefinition
from rftd.workers.learning.algorithms.registry import lookup, names
from rftd.workers.learning.engine import TrainBatch, TrainSample
from rftd.workers.learning.losses.registry import POLICY_LOSSES
from rftd.workers.models.tiny_model import make_tiny_model

RATES: Final = {"sft": 1e-3, "cpt": 1e-3, "dpo": 3e-4}
"""Of types by what their rows are; of types of rollouts it is the demo's."""
EXPERT_SHARE: Final = 0.25
ROW_BATCH: Final = 128
LABELLED: Final = "_labels"
"""After a type's name: of its rows, which might be pairs, each is one response with a label."""


def type_of(kind: str) -> AlgorithmDefinition:
    """The algorithm type of a row of the table."""
    return lookup(kind.removesuffix(LABELLED))


class Seed(msgspec.Struct, frozen=True):
    """What the runs of one seed have in common."""

    number: int
    settings: Settings
    sums: Any
    warm: str
    teacher: str
    folder: str


def stage_of(kind: str, seed: Seed, steps: int) -> StageSpec:
    """A stage with the type's own parts."""
    found, settings = type_of(kind), seed.settings
    loss = POLICY_LOSSES.open(found.policy_loss, found.policy_loss_args)
    return StageSpec(
        name=kind,
        kind="both" if found.needs.rollouts else "train",
        total_steps=steps,
        batch_size=settings.prompts,
        train_batch_size=settings.prompts * settings.repeat,
        algorithm=AlgorithmSpec(
            kind=found.name,
            repeat_times=settings.repeat,
            advantage=found.advantage,
            advantage_args=found.advantage_args,
            policy_loss=found.policy_loss,
            policy_loss_args=found.policy_loss_args,
            kl_loss=found.kl_loss,
            kl_loss_args=found.kl_loss_args,
            entropy_loss=found.entropy_loss,
            entropy_loss_args=found.entropy_loss_args,
            loss_agg_mode=getattr(loss, "loss_agg_mode", None) or found.loss_agg_mode,
            optimizer=Optimizer(
                lr=settings.grpo_lr if found.needs.rollouts else RATES[found.rows],
                weight_decay=settings.weight_decay,
                decay_all=True,
            ),
        ),
        model=ModelSpec(path=seed.warm, max_model_len=32, max_prompt_tokens=16, max_response_tokens=MAX_TOKENS),
        trainer=TrainerSpec(
            critic_path=seed.warm, teacher_path=seed.teacher, engine_args={"critic_lr": 1e-3}, critic_warmup_steps=0
        ),
    )


def row(sums: Sums, number: int, off: int = 0, **fields: Any) -> TrainSample:
    """One sum with an answer that is off by so much."""
    answer, prompt = sums.answer(number, off), sums.prompts[number]
    return TrainSample(
        tokens=np.array([*prompt, *answer], np.uint32),
        prompt_tokens=len(prompt),
        loss_mask=np.ones(len(answer), np.uint8),
        **fields,
    )


def expert_row(sums: Sums, number: int) -> TrainSample:
    """A right answer in a mixed batch."""
    zeros = np.zeros(len(sums.answers[number]), np.float32)
    return row(sums, number, logprobs=zeros, advantages=zeros, expert=True)


def text(sums: Sums, number: int) -> TrainSample:
    """A sum as a text, every token trained but the first."""
    tokens = np.array([*sums.prompts[number], *sums.answers[number]], np.uint32)
    return TrainSample(tokens=tokens, prompt_tokens=1, loss_mask=np.ones(len(tokens) - 1, np.uint8))


def dataset_batch(kind: str, sums: Sums, rows: NDArray[Any]) -> list[TrainSample]:
    """Rows of a type that learns from a dataset alone."""
    if kind.endswith(LABELLED):
        return [row(sums, int(number), place % 2, chosen=place % 2 == 0) for place, number in enumerate(rows)]
    if lookup(kind).rows == "dpo":
        return [
            row(sums, int(number), off, pair=pair, chosen=off == 0)
            for pair, number in enumerate(rows)
            for off in (0, 1)
        ]
    return [row(sums, int(number)) if kind == "sft" else text(sums, int(number)) for number in rows]


def rollout_batch(
    actor: Any, seed: Seed, rows: NDArray[Any], algorithm: AlgorithmSpec, generator: torch.Generator
) -> tuple[list[TrainSample], float]:
    """Scored groups with the type's advantages, and the mean reward."""
    sums, repeat = seed.sums, seed.settings.repeat
    repeated = np.repeat(rows, repeat)
    made, logprobs = sample(actor, sums.prompts[repeated], sums.eos, generator)
    responses = [cut(one, sums.eos) for one in made]
    rewards = np.array(
        [response == sums.answers[number] for response, number in zip(responses, repeated, strict=True)], np.float32
    )
    means = np.array([logprobs[n, : len(r)].mean() for n, r in enumerate(responses)], np.float32)
    lengths = np.array([len(response) for response in responses], np.int64)
    groups = [
        ClosedGroup(
            rewards=rewards[start : start + repeat],
            mean_logprobs=means[start : start + repeat],
            lengths=lengths[start : start + repeat],
            seed=start,
        )
        for start in range(0, len(repeated), repeat)
    ]
    advantages = np.concatenate(advantages_of(algorithm, groups))
    samples = [
        TrainSample(
            tokens=np.array([*sums.prompts[number], *response], np.uint32),
            prompt_tokens=sums.prompts.shape[1],
            loss_mask=np.ones(len(response), np.uint8),
            logprobs=logprobs[place, : len(response)].astype(np.float32),
            advantages=np.full(len(response), advantages[place], np.float32),
            reward=float(rewards[place]),
            group=place // repeat,
        )
        for place, (number, response) in enumerate(zip(repeated, responses, strict=True))
    ]
    return samples, float(rewards.mean())


def train(kind: str, seed: Seed, steps: int) -> dict[str, Any]:
    """One type on one seed: what it improves, before and after."""
    stage, needs, sums = stage_of(kind, seed, steps), type_of(kind).needs, seed.sums
    engine = TorchTrainerEngine(threads=1)
    spec = ExperimentSpec(project="p", name="n", job_dir=seed.folder, stages=(stage,), config={})
    engine.open(spec, seed.warm)
    engine.begin_stage(stage)
    actor: Any = AutoModelForCausalLM.from_pretrained(seed.warm, dtype=torch.float32)
    before = accuracy(actor, sums, sums.held_out)
    generator, rng = torch.Generator().manual_seed(seed.number), np.random.default_rng(seed.number)
    rewards: list[float] = []
    figures: list[dict[str, float]] = []
    for step in range(1, steps + 1):
        if needs.rollouts:
            take(actor, engine.tensors())
            rows = rng.permutation(sums.train)[: seed.settings.prompts]
            samples, reward = rollout_batch(actor, seed, rows, stage.algorithm, generator)
            rewards.append(reward)
            if needs.expert_data:
                expert = rng.permutation(sums.train)[: int(EXPERT_SHARE * len(samples))]
                samples = samples[len(expert) :] + [expert_row(sums, int(number)) for number in expert]
        else:
            samples = dataset_batch(kind, sums, rng.permutation(sums.train)[:ROW_BATCH])
        figures.append(engine.train(TrainBatch(step=step, stage_step=step, samples=samples)).metrics)
    take(actor, engine.tensors())
    result = {"kind": kind, "seed": seed.number, "held_out": [before, accuracy(actor, sums, sums.held_out)]}
    if rewards:
        result["reward"] = [statistics.mean(rewards[:5]), statistics.mean(rewards[-5:])]
    if kind.endswith(LABELLED):
        chosen, rejected = (_ends(figures, f"actor/{side}_reward") for side in ("chosen", "rejected"))
        result["gained"] = [one - other for one, other in zip(chosen, rejected, strict=True)]
    elif type_of(kind).rows == "dpo":
        result["told_apart"] = _ends(figures, "actor/accuracy_mean")
    if not needs.rollouts:
        result["loss"] = _ends(figures, "actor/final_loss")
    return result


def _ends(figures: list[dict[str, float]], name: str) -> list[float]:
    return [figures[0][name], statistics.mean(each[name] for each in figures[-5:])]


def prepare(number: int, settings: Settings, folder: Path) -> Seed:
    """The warm-up of a seed, and a teacher from it."""
    base = make_tiny_model(folder / f"model-{number}", seed=number)
    tokenizer = AutoTokenizer.from_pretrained(base)
    sums, engine = Sums(tokenizer), open_engine(settings, base, folder)
    engine.begin_stage(make_stage("sft", settings))
    sft(engine, sums, settings)
    actor: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    warm, teacher = folder / f"warm-{number}", folder / f"teacher-{number}"
    take(actor, engine.tensors())
    actor.save_pretrained(warm)
    train_grpo(engine, actor, sums, number, settings, torch.Generator().manual_seed(number))
    actor.save_pretrained(teacher)
    for path in (warm, teacher):
        tokenizer.save_pretrained(path)
    return Seed(number, settings, sums, str(warm), str(teacher), str(folder))


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over seeds, one row for each type."""
    rows = []
    for kind in dict.fromkeys(run["kind"] for run in runs):
        of = [run for run in runs if run["kind"] == kind]
        rows.append({"kind": kind})
        for name in ("reward", "held_out", "told_apart", "gained", "loss"):
            pairs = [run[name] for run in of if name in run]
            if pairs:
                rows[-1][name] = [median_of(side, 3) for side in zip(*pairs, strict=True)]
    return rows


def main() -> None:
    """Prints a line for each run, then the table."""
    options = vars(read_options(__doc__, seeds=[1, 2, 3], steps=60, kinds=[*names(), f"kto{LABELLED}"], **OPTIONS))
    seeds, steps, kinds = options.pop("seeds"), options.pop("steps"), options.pop("kinds")
    settings = Settings(**{**options, "offsets": tuple(options["offsets"]), "grpo_steps": 150})
    torch.set_num_threads(1)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in seeds:
            seed = prepare(number, settings, Path(folder))
            for kind in kinds:
                runs.append(train(kind, seed, steps))
                note(runs[-1])
    tell({"seeds": seeds, "steps": steps, "algorithms": summary(runs)})


if __name__ == "__main__":
    main()
