"""`TextRollout` and `TextGroup`: rollouts as text, drawn side by side in a notebook; `TokenFigures`, `SeriesPoint`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from rftd.daemon.http.client.cards import group_card, rollout_card
from rftd.daemon.http.client.rows import RowDict, RowList
from rftd.daemon.http.views.series import Series
from rftd.daemon.http.views.text import ExperienceText, GroupText, MessageText, RolloutText
from rftd.daemon.http.views.tokens import TokenWindow


class TextRollout(RowDict):
    """One rollout as text: columns of the experience, with prompt, answer and truth."""

    view: ExperienceText

    def __init__(self, view: ExperienceText) -> None:
        turns = view.rollout.turns
        super().__init__(
            view.rollout.experience,
            prompt=turns[0].bare_prompt if turns else None,
            answer="\n".join(turn.answer for turn in turns) if turns else None,
            truth=view.truth,
        )
        self.view = view

    @property
    def id(self) -> str:
        """Id of the experience."""
        return self.view.rollout.experience.id

    @property
    def reward(self) -> float | None:
        """Reward of the rollout."""
        return self.view.rollout.experience.reward

    @property
    def prompt(self) -> str | None:
        """Prompt of the first turn without marks of the chat template; None without a text."""
        prompt: str | None = self["prompt"]
        return prompt

    @property
    def answer(self) -> str | None:
        """Answer of all turns; None without a text, see `notes`."""
        answer: str | None = self["answer"]
        return answer

    @property
    def truth(self) -> str | None:
        """Right answer in the row."""
        return self.view.truth

    @property
    def notes(self) -> list[str]:
        """Reasons for missing parts."""
        return [*self.view.rollout.notes, *self.view.notes]

    def __repr__(self) -> str:
        return f"<rollout {self.id[:8]} reward {self.reward}: {(self.answer or '')[:200]!r}>"

    def _repr_html_(self) -> str:
        return rollout_card(self, labelled_texts(self))


class TextGroup:
    """The rollouts of one group as text, side by side."""

    def __init__(self, view: GroupText) -> None:
        self.view = view
        self.rollouts: RowList[TextRollout] = RowList(
            TextRollout(
                ExperienceText(
                    task=view.task, messages=view.messages, truth=view.truth, rollout=rollout, notes=view.notes
                )
            )
            for rollout in view.items
        )

    @property
    def id(self) -> str:
        """Id of the group."""
        return self.view.group

    @property
    def rewards(self) -> list[float | None]:
        """Reward of each rollout."""
        return [rollout.reward for rollout in self.rollouts]

    def __repr__(self) -> str:
        return f"<group {self.id[:8]} of {len(self.rollouts)} rollouts, rewards {self.rewards}>"

    def _repr_html_(self) -> str:
        head = self.rollouts[0].view if self.rollouts else None
        texts = _prompt(head) if head is not None else []
        failed = [("failed", f"{row.code}: {row.reason}") for row in self.view.failed]
        cards = [rollout_card(rollout, list(_answers(rollout))) for rollout in self.rollouts]
        return group_card(f"group {self.id[:8]}", [*texts, *failed], cards)


class TokenFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a rollout; None for figures not applicable, such as those of prompt tokens."""

    position: int
    """Number of the token, prompt included, from 0."""
    id: int
    text: str | None
    """Text added by the token; None without a tokenizer."""
    step: int
    response: bool
    drawn: bool
    mask: int
    """1 for a trained token, else 0."""
    logprob: float | None
    """Log-probability under the weights that drew the token."""
    version: int | None
    advantage: float | None


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of one run in one bucket of a series."""

    run: str
    metric: str
    at: float
    """End of the bucket in steps, tokens or seconds."""
    mean: float | None
    min: float | None
    max: float | None
    p10: float | None
    p50: float | None
    p90: float | None
    count: int
    """Number of finite figures in the bucket."""


def labelled_texts(rollout: TextRollout) -> list[tuple[str, str]]:
    """Returns the texts of a rollout, each with its writer: messages, answer, truth, judges and notes."""
    return [*_prompt(rollout.view), *_answers(rollout)]


def token_rows(window: TokenWindow) -> Iterator[TokenFigures]:
    """Yields the tokens of a window as rows."""
    for index, token in enumerate(window.ids):
        yield TokenFigures(
            position=window.first + index,
            id=token,
            text=window.texts[index] if window.texts else None,
            step=window.steps[index],
            response=window.response[index],
            drawn=window.drawn[index],
            mask=window.mask[index],
            logprob=window.logprobs[index],
            version=window.versions[index],
            advantage=window.advantages[index] if window.advantages else None,
        )


def series_points(series: Series) -> Iterator[SeriesPoint]:
    """Yields the points of a series as rows, line by line, without empty buckets."""
    names = {run.id: run.name for run in series.runs}
    for line in series.lines:
        for index, at in enumerate(series.at):
            if line.count[index]:
                yield SeriesPoint(
                    run=names.get(line.run, line.run),
                    metric=line.metric,
                    at=at,
                    mean=line.mean[index],
                    min=line.min[index],
                    max=line.max[index],
                    p10=line.p10[index],
                    p50=line.p50[index],
                    p90=line.p90[index],
                    count=line.count[index],
                )


def _prompt(view: ExperienceText) -> list[tuple[str, str]]:
    if view.messages:
        return [(message.role, _content(message)) for message in view.messages]
    return [("prompt", turn.bare_prompt) for turn in view.rollout.turns[:1]]


def _content(message: MessageText) -> str:
    return f"{message.content}\n{message.extra}" if message.extra else message.content


def _answers(rollout: TextRollout) -> Iterator[tuple[str, str]]:
    yield from _parts(rollout.view.rollout)
    if rollout.truth is not None:
        yield "truth", rollout.truth
    yield from (("note", note) for note in rollout.notes)


def _parts(rollout: RolloutText) -> Iterator[tuple[str, str]]:
    for turn in rollout.turns:
        written: Sequence[str] = [passage.by for passage in turn.parts]
        if set(written) <= {"model"}:
            yield "answer", turn.answer
        else:
            yield from (("answer" if passage.by == "model" else passage.by, passage.text) for passage in turn.parts)
    for judge in rollout.auxiliary:
        yield f"answer of {judge.model}", judge.text
