"""A run of texts: characters as tokens, answers as given, a taskset of sums, and the tokenizer among the artifacts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
from synthetic.log.recorder import Recorder
from synthetic.log.synthetic_run import SyntheticRun, spec_of

from rftd.ops.ids import derive
from rftd.storage.files.artifacts import ArtifactStore
from rftd.streams.events.experience import AuxiliaryTurn, ExperienceProduced, RunStep, SamplingSpan, Span
from rftd.streams.events.task import Member
from rftd.streams.log.arrays import Array
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import ExperimentSpec, TasksetSpec
from rftd.workers.datasets.taskset import Taskset

EOS = 256


class SyntheticRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of the run."""

    prompt: str = "2+3="
    prompt_ids: tuple[int, ...] = ()
    """Ids in place of the prompt's characters."""
    parts: tuple[tuple[str, bool], ...] = (("5", True),)
    """The answer in parts, each with whether the model drew it."""
    reward: float = 1.0
    extra: tuple[int, ...] = (EOS,)
    """Ids behind the answer."""
    steps: tuple[RunStep, ...] = ()
    dropped: bool = False
    """Without the bytes of its arrays, as after the policy of payloads."""
    auxiliary: tuple[AuxiliaryTurn, ...] = ()
    extracted: str | None = None

    @property
    def answer(self) -> str:
        """The whole answer."""
        return "".join(text for text, _ in self.parts)


def tokenizer_json(*, characters: int = 256) -> str:
    """A tokenizer of single characters, and of the end of a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    inner = Tokenizer(models.WordLevel({chr(code): code for code in range(characters)}, "?"))
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([AddedToken("<eos>", special=True)])
    return inner.to_str()


def text_spec(folder: Path, name: str, advantage: str = "grpo") -> ExperimentSpec:
    """The specification of a run below a folder, with three rows of sums."""
    path = folder / "sums.jsonl"
    rows = ({"question": f"2+{number}=", "answer": str(2 + number)} for number in range(1, 4))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    taskset = TasksetSpec(name="sums", path=str(path), format=Format(prompt_key="question", response_key="answer"))
    with Taskset.open(taskset) as opened:
        taskset = msgspec.structs.replace(taskset, rows=3, digest=opened.digest)
    spec = spec_of(name, 1, str(folder / f"job-{name}"))
    sft, rft = spec.stages
    model = msgspec.structs.replace(rft.model, path=str(folder / "model"))
    algorithm = msgspec.structs.replace(rft.algorithm, advantage=advantage)
    rft = msgspec.structs.replace(rft, taskset=taskset, model=model, algorithm=algorithm)
    return msgspec.structs.replace(spec, stages=(sft, rft))


def text_run(folder: Path, name: str = "texts", *, tokenizer: str | None = None, advantage: str = "grpo") -> TextRun:
    """A run below a folder, begun; with the copy of a tokenizer, or without any."""
    spec = text_spec(folder, name, advantage)
    store = ArtifactStore(Path(spec.job_dir) / "artifacts")
    copies = () if tokenizer is None else ("", store.put(tokenizer.encode()))
    run = TextRun(Recorder(seed=len(name)), name=name, job_dir=spec.job_dir, spec=spec, tokenizers=copies)
    run.begin()
    run.warm_up()
    return run


@dataclass
class TextRun(SyntheticRun):
    """The rollouts of each group are those of `rollouts`, in order."""

    rollouts: list[SyntheticRollout] = field(default_factory=list)

    def group(self, rollouts: Sequence[SyntheticRollout], *, failed: int = 0) -> UUID:
        """One closed group of these rollouts; as many of four as `failed` have none."""
        self.rollouts = list(rollouts)
        return self.explore(failed=failed)

    def produce(self, group: UUID, rollout: int, lease: UUID, *, source: str = "") -> Member:
        """The next rollout of `rollouts`."""
        spoken = self.rollouts.pop(0)
        prompt = list(spoken.prompt_ids) or [ord(character) for character in spoken.prompt]
        answer = [ord(character) for character in spoken.answer]
        drawn = [by_model for text, by_model in spoken.parts for _ in text]
        tokens = [*prompt, *answer, *spoken.extra]
        length = len(tokens) - len(prompt)
        mask = [*(int(by_model) for by_model in drawn), *(1 for _ in spoken.extra)]
        prompt_tokens = sum(step.prompt_tokens for step in spoken.steps) if spoken.steps else len(prompt)
        if spoken.steps:
            length = len(tokens) - prompt_tokens
            mask = [1] * length
        arrays = {
            "tokens": Array.of(tokens, "u4"),
            "loss_mask": Array.of(mask, "u1"),
            "logprobs": Array.of(-np.arange(length) / 8, "f4"),
        }
        if spoken.dropped:
            arrays = {name: array.dropped() for name, array in arrays.items()}
        id = derive(derive(group, "rollout", rollout), "experience")
        produced = ExperienceProduced(
            experience=id,
            group=group,
            rollout=rollout,
            stage=1,
            lease=lease,
            prompt_tokens=prompt_tokens,
            spans=(Span(self.version, 0, 0, length),),
            sampling=tuple(_sampling(mask)),
            reward=spoken.reward,
            metrics={"accuracy": spoken.reward},
            steps=spoken.steps,
            auxiliary=spoken.auxiliary,
            extracted=spoken.extracted,
            **arrays,
        )
        place = self.recorder.write(produced, self.id, key=group, id=id)
        return Member(
            id,
            rollout,
            place.partition.number,
            place.offset,
            spoken.reward,
            0.0,
            len(tokens),
            self.version,
            self.version,
        )


def _sampling(mask: Sequence[int]) -> list[SamplingSpan]:
    spans: list[SamplingSpan] = []
    for index, drawn in enumerate(mask):
        if drawn and spans and spans[-1].end == index:
            spans[-1] = SamplingSpan(spans[-1].start, index + 1, 1.0)
        elif drawn:
            spans.append(SamplingSpan(index, index + 1, 1.0))
    return spans
