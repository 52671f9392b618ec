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
    """The rollout as answered by the API."""

    def __init__(self, view: ExperienceText) -> None:
        """Takes the columns from `view`."""
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
        """Returns the rollout as a card, for notebooks."""
        return rollout_card(self, labelled_texts(self))


class TextGroup:
    """The rollouts of one group as text, side by side."""

    def __init__(self, view: GroupText) -> None:
        """Takes the rollouts from `view`."""
        self.view = view
        """The group as answered by the API."""
        self.rollouts: RowList[TextRollout] = RowList(
            TextRollout(
                ExperienceText(
                    task=view.task, messages=view.messages, truth=view.truth, rollout=rollout, notes=view.notes
                )
            )
            for rollout in view.items
        )
        """The rollouts of the group."""

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
        """Returns the rollouts side by side below their prompt, for notebooks."""
        head = self.rollouts[0].view if self.rollouts else None
        texts = _prompt_texts(head) if head is not None else []
        failed = [("failed", f"{row.code}: {row.reason}") for row in self.view.failed]
        cards = [rollout_card(rollout, list(_answer_texts(rollout))) for rollout in self.rollouts]
        return group_card(f"group {self.id[:8]}", [*texts, *failed], cards)


class TokenFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a rollout; None for figures not applicable, such as those of prompt tokens."""

    position: int
    """Number of the token, prompt included, from 0."""
    id: int
    """Id of the token in the tokenizer."""
    text: str | None
    """Text added by the token; None without a tokenizer."""
    step: int
    """Number of the token's sequence, from 0, in a rollout of several."""
    response: bool
    """True for a token of a response, False for the prompt."""
    drawn: bool
    """True for a token sampled by the model."""
    mask: int
    """1 for a trained token, else 0."""
    logprob: float | None
    """Log-probability under the weights that drew the token."""
    version: int | None
    """Weight version that sampled the token."""
    advantage: float | None
    """Advantage of the token's rollout or step; None for an untrained token."""
    ratio: float | None = None
    """Probability of the token under the weights before the step, divided by its probability when drawn; None until
    recomputed, as are the figures below.
    """
    kl: float | None = None
    """Estimated KL divergence from the reference policy at the token."""
    policy_term: float | None = None
    entropy_term: float | None = None
    kl_term: float | None = None
    objective: float | None = None
    """Sum of the token's terms in the step's objective."""


class SeriesPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of one run in one bucket of a series."""

    run: str
    """Name of the run whose figure this is."""
    metric: str
    """Name of the figure."""
    at: float
    """End of the bucket in steps, tokens or seconds."""
    mean: float | None
    """Mean in the bucket; None without a finite figure, as below."""
    min: float | None
    """Minimum in the bucket."""
    max: float | None
    """Maximum in the bucket."""
    p10: float | None
    """10th percentile in the bucket."""
    p50: float | None
    """Median in the bucket."""
    p90: float | None
    """90th percentile in the bucket."""
    count: int
    """Number of finite figures in the bucket."""


def labelled_texts(rollout: TextRollout) -> list[tuple[str, str]]:
    """Returns the texts of a rollout, each with its writer: messages, answer, truth, judges and notes."""
    return [*_prompt_texts(rollout.view), *_answer_texts(rollout)]


def token_rows(window: TokenWindow) -> Iterator[TokenFigures]:
    """Yields the tokens of a window as rows."""
    columns: dict[str, list[float | None]] = {
        "ratio": window.ratios,
        "kl": window.kls,
        "policy_term": window.policy_terms,
        "entropy_term": window.entropy_terms,
        "kl_term": window.kl_terms,
        "objective": window.objectives,
    }
    terms = {name: column for name, column in columns.items() if column}
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
            **{name: column[index] for name, column in terms.items()},
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


def _prompt_texts(view: ExperienceText) -> list[tuple[str, str]]:
    """Returns the messages by role, or the prompt of the first turn if there are no messages."""
    if view.messages:
        return [(message.role, _message_text(message)) for message in view.messages]
    return [("prompt", turn.bare_prompt) for turn in view.rollout.turns[:1]]


def _message_text(message: MessageText) -> str:
    """Returns a message's text with its further fields below."""
    return f"{message.content}\n{message.extra}" if message.extra else message.content


def _answer_texts(rollout: TextRollout) -> Iterator[tuple[str, str]]:
    """Yields answers of the model and of judges, truth and notes of a rollout, each with its label."""
    yield from _part_texts(rollout.view.rollout)
    if rollout.truth is not None:
        yield "truth", rollout.truth
    yield from (("note", note) for note in rollout.notes)


def _part_texts(rollout: RolloutText) -> Iterator[tuple[str, str]]:
    """Yields the answers of all turns, in parts by author where others than the model wrote, and the judges'
    answers.
    """
    for turn in rollout.turns:
        written: Sequence[str] = [passage.by for passage in turn.parts]
        if set(written) <= {"model"}:
            yield "answer", turn.answer
        else:
            yield from (("answer" if passage.by == "model" else passage.by, passage.text) for passage in turn.parts)
    for judge in rollout.auxiliary:
        yield f"answer of {judge.model}", judge.text
