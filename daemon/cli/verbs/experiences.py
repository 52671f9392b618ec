"""`rftd experiences`: an experiment's experiences, and the state of each."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click
import msgspec

from rftd.daemon.cli.output.data import emit_line, emitted
from rftd.daemon.cli.output.quantity import age, number, shorts
from rftd.daemon.cli.output.table import LABEL, console_of, labelled, table
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.cli.verbs.answer_words import find
from rftd.daemon.cli.verbs.arguments import (
    bounds_of,
    experiment_argument,
    page_options,
    reason_option,
    request_id_option,
    steps_named,
)
from rftd.daemon.cli.verbs.rehearsal import dry_run_option, show_consequence
from rftd.daemon.cli.verbs.rollout_file import export
from rftd.daemon.cli.verbs.untrained import drops, lengths
from rftd.daemon.http.views import experiences
from rftd.daemon.http.views import text as text_views
from rftd.daemon.http.views import tokens as token_views
from rftd.daemon.http.views.commands import Reason
from rftd.daemon.http.views.experiences import ExperienceView
from rftd.daemon.http.views.text import ExperienceText, TextTurn
from rftd.daemon.http.views.tokens import TokenWindow
from rftd.ops.clock import Clock, SystemClock
from rftd.storage.queries.experiences import ExperienceRow

if TYPE_CHECKING:
    from rftd.daemon.http.client.client import Client

_WIDEST_PIECE: Final = 24
"""Columns for the text of a token; a longer text moves its line's figures."""
_WHOLE_TEXT_CHARS: Final = 10_000_000
"""Characters of a text requested for a single experience: more than any has."""
_WINDOW: Final = 4096
"""Number of tokens whose texts are requested at once."""
_PAGE: Final = 1000
"""Maximum number of experiences requested at once."""
_TERMS: Final = {
    "ratios": "RATIO",
    "kls": "KL",
    "policy_terms": "POLICY",
    "entropy_terms": "ENTROPY",
    "kl_terms": "KL TERM",
    "objectives": "OBJECTIVE",
}
"""Recomputed columns of tokens, with their titles."""
STATES = ("open", "waiting", "cooling", "planned", "retired", "late")
"""States of experiences by which `--state` filters."""
ORDERS = ("newest", "oldest", "reward", "-reward", "staleness", "-staleness")
"""Orders of the list of experiences, as chosen by `--order`."""


@click.group("experiences")
def command() -> None:
    """List an experiment's experiences, show one, or compare the lengths of generated and trained responses."""


@command.command("ls")
@experiment_argument
@click.option("--step", metavar="A:B", help="Planned for the steps A to B; also A, A: or :B.")
@click.option("--reward", metavar="'>0.8'", help="Only rewards matching this comparison with >, >=, <, <= or =.")
@click.option("--staleness", metavar="'>4'", help="Only this staleness, in weight versions when it was planned.")
@click.option("--state", type=click.Choice(STATES), help="Only this state.")
@click.option("--stage", type=click.IntRange(0), help="Only this stage: its number, from 0.")
@click.option("--group", metavar="ID", help="Only this group: its whole id.")
@click.option("--row", type=click.IntRange(0), help="Only this row of the taskset.")
@click.option("--finish", help="Only answers that ended so: stop, length.")
@click.option("--weights", type=click.IntRange(0), metavar="VERSION", help="Only answers by this weight version.")
@click.option(
    "--part", "reward_part", metavar="'NAME>0.5'", help="Only with this part of the reward, or with it in these bounds."
)
@click.option("--order", type=click.Choice(ORDERS), default="newest", show_default=True)
@page_options
@shared_options
@click.pass_obj
def ls(
    settings: Settings,
    name: str,
    step: str | None,
    reward: str | None,
    staleness: str | None,
    state: str | None,
    stage: int | None,
    group: str | None,
    row: int | None,
    finish: str | None,
    weights: int | None,
    reward_part: str | None,
    order: str,
    limit: int,
    cursor: str | None,
) -> None:
    """List the experiences of experiment NAME."""
    from rftd.daemon.http.client.client import Client

    first, last = steps_named(step)
    low, high = bounds_of(reward, "--reward")
    least, most = bounds_of(staleness, "--staleness")
    part_name = re.split("[<>=]", reward_part)[0] if reward_part is not None else None
    least_part, most_part = bounds_of((reward_part or "")[len(part_name or "") :] or None, "--part")
    with Client(settings) as client:
        answer = client.ask(
            experiences.experiences,
            name=name,
            first_step=first,
            last_step=last,
            min_reward=low,
            max_reward=high,
            # Staleness is a whole number, and the API accepts only whole numbers: the bounds are rounded inwards.
            min_staleness=None if least is None else max(0, math.ceil(least)),
            max_staleness=None if most is None else math.floor(most),
            state=state,
            stage=stage,
            group=group,
            row=row,
            finish=finish,
            version=weights,
            part=part_name,
            min_part=least_part,
            max_part=most_part,
            order=order,
            limit=limit,
            cursor=cursor,
        )
    if emitted(answer.plain(), settings):
        return
    headers = ("ID", "STATE", "REWARD", "TOKENS", "VERSIONS", "STEP", "STALE", "USES", "FINISH", "AGE")
    right = ("REWARD", "TOKENS", "VERSIONS", "STEP", "STALE", "USES", "AGE")
    console, clock = console_of(settings), SystemClock()
    ids = shorts([row.id for row in answer.value.items])
    rows = [(id, *_table_row(row, clock)) for id, row in zip(ids, answer.value.items, strict=True)]
    go = ("USES", "AGE", "VERSIONS", "FINISH")
    console.print(table(headers, rows, right=right, whole=("ID", "STATE"), width=console.width, first_to_go=go))
    if answer.value.next is not None and settings.verbosity >= 0:
        say(f"next page: --cursor {answer.value.next}", err=True)


@command.command("show")
@experiment_argument
@click.argument("id")
@click.option("--tokens", is_flag=True, help="Print each token of the answer with its id, text and log-probability.")
@click.option("--recompute", is_flag=True, help="With --tokens: also ratio and objective, by a replay of the training.")
@shared_options
@click.pass_obj
def show(settings: Settings, name: str, id: str, tokens: bool, recompute: bool) -> None:
    """Show experience ID of experiment NAME: prompt, answer and truth, and the weight versions that generated it.

    ID is an id, or 8 or more of its first digits. The daemon decodes the text with the experiment's own copy of the
    tokenizer; without one, token ids are shown. A replay waits until no run of the daemon needs the memory, and its
    answer is kept.
    """
    from rftd.daemon.http.client.client import Client

    tokens = tokens or recompute
    with Client(settings) as client:
        answer = client.ask(experiences.experience, name=name, experience=id, tokens=tokens)
        text = client.ask(text_views.experience_text, name=name, experience=id, chars=_WHOLE_TEXT_CHARS)
        if recompute:
            client.run(name).recompute(id, show=lambda sentence: say(sentence, err=True))
        windows = list(_windows(client, name, answer.value)) if tokens else []
    pieces = [piece for window in windows for piece in window.texts]
    terms = {
        column: [number for window in windows for number in getattr(window, column)]
        for column in _TERMS
        if recompute and any(getattr(window, column) for window in windows)
    }
    shown = {**answer.plain(), "text": {**text.plain(), "pieces": pieces}, **({"terms": terms} if recompute else {})}
    if emitted(shown, settings):
        return
    page = answer.value
    lines = [*_page_lines(page), *_text_lines(text.value, page), *token_lines(page, pieces, terms)]
    notes = dict.fromkeys(note for window in windows[:1] for note in window.notes) if recompute else ()
    say("\n".join([*lines, *(labelled("note", note) for note in notes)]), indent=LABEL)


def _windows(client: Client, name: str, page: ExperienceView) -> Iterator[TokenWindow]:
    """Yields the response tokens of a single sequence, window by window."""
    first: int | None = page.experience.prompt_tokens
    while first is not None:
        window = client.ask(token_views.tokens, name=name, experience=page.experience.id, first=first, n=_WINDOW).value
        yield window
        first = window.next


command.add_command(export)
command.add_command(find)
command.add_command(lengths)
command.add_command(drops)


@command.command("rows")
@experiment_argument
@click.option(
    "--schema",
    type=click.Choice(("sft", "experience")),
    default="sft",
    show_default=True,
    help="Rows of text to imitate, or rollouts with their log-probabilities and rewards.",
)
@click.option("--reward", metavar="'>0.8'", help="Only rewards matching this comparison with >, >=, <, <= or =.")
@click.option("--stage", type=click.IntRange(0), help="Only this stage: its number, from 0.")
@shared_options
@click.pass_obj
def rows(settings: Settings, name: str, schema: str, reward: str | None, stage: int | None) -> None:
    """Print the experiences of experiment NAME as rows to train on, as JSON lines.

    \b
    sft         prompt, response and reward, for prompt_type: raw. The prompt is
                the whole text that the model was given. An experience whose
                tokens no such row says is left out, and counted.
    experience  token ids, log-probabilities, reward and group, for grpo and
                others with mode: train and storage_type: file. Rows of a group
                are neighbours.
    """
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.client.recorded_rows import RecordedRow, RecordedRows, RolloutRow, experience_row
    from rftd.daemon.http.client.specification import specification

    low, high = bounds_of(reward, "--reward")
    with Client(settings) as client:
        spec = specification(client, name)
        recorded = RecordedRows(spec)
        row_count = 0
        for id in _ids(client, name, low, high, stage, by_group=schema == "experience"):
            shown = client.ask(experiences.experience, name=name, experience=id, tokens=True).value
            if spec and schema == "experience":
                row: RecordedRow | RolloutRow | None = experience_row(spec, shown)
            else:
                whole = client.ask(text_views.experience_text, name=name, experience=id, chars=_WHOLE_TEXT_CHARS)
                row = recorded.row(shown, whole.value.rollout)
            if row is not None:
                emit_line(msgspec.to_builtins(row))
                row_count += 1
    for why, count in recorded.left_out.items():
        say(f"left out: {count} ({why})", err=True)
    if not row_count:
        say("no row: no experience matches, or none can be written as a row", err=True)


def _ids(
    client: Client, name: str, low: float | None, high: float | None, stage: int | None, *, by_group: bool
) -> Iterator[str]:
    """Yields the ids of experiences with a reward from `low` to `high`, oldest first; with `by_group` one group at a
    time.
    """
    groups: dict[str, list[ExperienceRow]] = {}
    cursor: str | None = None
    while True:
        page = client.ask(
            experiences.experiences,
            name=name,
            min_reward=low,
            max_reward=high,
            stage=stage,
            order="oldest",
            limit=_PAGE,
            cursor=cursor,
        ).value
        if not by_group:
            yield from (row.id for row in page.items)
        else:
            for row in page.items:
                groups.setdefault(row.group, []).append(row)
        if (cursor := page.next) is None:
            break
    for rows in groups.values():
        yield from (row.id for row in sorted(rows, key=lambda row: row.rollout))


@command.command("prioritize", context_settings={"ignore_unknown_options": True})
@experiment_argument
@click.argument("id")
@click.argument("priority", type=float)
@reason_option
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def prioritize(
    settings: Settings, name: str, id: str, priority: float, reason: str, dry_run: bool, request_id: str | None
) -> None:
    """Set the PRIORITY of experience ID of experiment NAME, and of its whole group: the highest is trained first.

    The priority is the tag that the workflow set, 0 by default; a replay buffer's priority function adds to it.
    """
    from rftd.daemon.http.client.client import Client

    body = experiences.Tag(priority=priority, reason=reason)
    with Client(settings) as client:
        if dry_run:
            rehearsed = client.rehearse(experiences.prioritize, body, name=name, experience=id)
            show_consequence(rehearsed.value, rehearsed.plain(), settings)
            return
        sent = client.send(experiences.prioritize, body, name=name, experience=id, request_id=request_id).value
    done = {"id": sent.id, "experience": id, "priority": priority, "event": sent.event}
    if not emitted(done, settings) and settings.verbosity >= 0:
        say(f"{id}  priority {priority:g}  {sent.event}")


@command.command("give-up")
@experiment_argument
@click.argument("id")
@reason_option
@dry_run_option
@request_id_option
@shared_options
@click.pass_obj
def give_up(settings: Settings, name: str, id: str, reason: str, dry_run: bool, request_id: str | None) -> None:
    """Give up experience ID of experiment NAME, whose payload is permanently lost.

    The experience is retired. A batch that holds it and was never executed is abandoned, together with the batches
    after it: their other experiences return to the buffer and are planned again. An experience that was trained cannot
    be given up.
    """
    from rftd.daemon.http.client.client import Client

    body = Reason(reason=reason)
    with Client(settings) as client:
        if dry_run:
            rehearsed = client.rehearse(experiences.give_up, body, name=name, experience=id)
            show_consequence(rehearsed.value, rehearsed.plain(), settings)
            return
        sent = client.send(experiences.give_up, body, name=name, experience=id, request_id=request_id).value
    if not emitted({"id": sent.id, "experience": id, "event": sent.event}, settings) and settings.verbosity >= 0:
        say(f"{id}  given up  {sent.event}")


def _table_row(row: ExperienceRow, clock: Clock) -> tuple[str, ...]:
    """Returns an experience as a row of the table."""
    versions = "-".join(dict.fromkeys((str(row.oldest_version), str(row.newest_version))))
    return (
        (f"{row.state} ({row.retired_reason})" if row.retired_reason else row.state) + " *" * row.starred,
        number(row.reward),
        f"{row.prompt_tokens}+{row.response_tokens}",
        versions,
        "-" if row.step is None else str(row.step),
        "-" if row.staleness_versions is None else str(row.staleness_versions),
        str(row.uses),
        row.finish,
        age(row.produced_ns, clock),
    )


def _page_lines(page: ExperienceView) -> Iterator[str]:
    """Yields the lines about an experience, without its text."""
    row = page.experience
    where = f"{row.state}" + (f" ({row.retired_reason})" if row.retired_reason else "")
    yield labelled("experience", row.id)
    yield labelled("group", f"{row.group}, rollout {row.rollout}")
    if page.task is not None:
        yield labelled("task", f"number {page.task.sequence}, row {page.task.row} of epoch {page.task.epoch}")
    stale = (f", step {row.step}, staleness {row.staleness_versions}" if row.step else "") + ", starred" * row.starred
    yield labelled("state", f"{where}{stale}")
    yield labelled("reward", str(row.reward))
    if row.metrics:
        parts = ", ".join(f"{name} {part_reward:g}" for name, part_reward in row.metrics.items())
        yield labelled("reward parts", parts)
    yield labelled("tokens", f"{row.prompt_tokens} prompt + {row.response_tokens} response, ended by {row.finish}")
    for index, span in enumerate(page.spans):
        drawn = f"version {span.version} (generation {span.generation})"
        yield labelled("" if index else "drawn by", f"{drawn}: response tokens {span.start} to {span.end}")
    for index, used in enumerate(page.sampling):
        further = _settings_words(used.others)
        settings = f"temperature {used.temperature:g}, top_p {used.top_p:g}, top_k {used.top_k}{further}"
        yield labelled("" if index else "sampling", f"{settings}: response tokens {used.start} to {used.end}")
    for index, turn in enumerate(page.auxiliary):
        # In Python's notation: a model's text may contain terminal control characters.
        cut = f", the beginning of {turn.chars} characters" if len(turn.text) < turn.chars else ""
        text = f"{turn.model}: {turn.text!r}{cut} ({turn.tokens} tokens, question {turn.asked})"
        yield labelled("" if index else "asked", text)


def _text_lines(text: ExperienceText, page: ExperienceView) -> Iterator[str]:
    """Yields prompt, answer and truth, always without terminal control characters: a pipe may end at a terminal."""
    # A table of the tokens shows the ids, too.
    for ids in text.rollout.ids if page.tokens is None else ():
        yield labelled("prompt ids", " ".join(map(str, ids.prompt)))
        yield labelled("answer ids", " ".join(map(str, ids.answer)))
    for turn in text.rollout.turns:
        yield labelled("prompt", turn.prompt)
        yield from answer_lines(turn)
    if text.rollout.extracted is not None:
        yield labelled("extracted", text.rollout.extracted)
    if text.truth is not None:
        yield labelled("truth", text.truth)
    for note in (*text.rollout.notes, *text.notes):
        yield labelled("note", note)


def answer_lines(turn: TextTurn) -> Iterator[str]:
    """Yields the answer, with parts of the workflow and of tools below their own labels."""
    if [passage.by for passage in turn.parts] == ["model"]:
        yield labelled("answer", turn.answer)
        return
    for passage in turn.parts:
        yield labelled("answer" if passage.by == "model" else passage.by, passage.text)


def token_lines(
    page: ExperienceView, pieces: Sequence[str], terms: Mapping[str, Sequence[float | None]] = MappingProxyType({})
) -> Iterator[str]:
    """Yields the prompt's ids, and a line for each response id with its text in Python's notation.

    `terms` are recomputed columns of the response tokens.
    """
    if page.tokens is None or page.logprobs is None:
        return
    row = page.experience
    response = page.tokens[row.prompt_tokens :]
    mask = page.loss_mask or [1] * len(response)
    yield labelled("prompt ids", " ".join(map(str, page.tokens[: row.prompt_tokens])))
    processed = [f"  processed {logprob_processed:>9.4f}" for logprob_processed in page.processed_logprobs or ()] or [
        ""
    ] * len(response)
    texts = [repr(piece) for piece in pieces] or [""] * len(response)
    width = min(max(map(len, texts), default=0), _WIDEST_PIECE)
    heads = "".join(f"  {_TERMS[name]:>9}" for name in terms)
    yield f"  {'PLACE':>5}  {'TOKEN':>7}  {'TEXT' if pieces else '':<{width}}  {'LOGPROB':>9}{heads}"
    columns = zip(response, texts, page.logprobs, processed, mask, strict=False)
    for index, (token, text, logprob, after, trained) in enumerate(columns):
        recomputed = "".join(f"  {_figure(column[index]):>9}" for column in terms.values())
        columns_after = f"{logprob:>9.4f}{recomputed}{after}  {'' if trained else 'not trained'}"
        yield f"  {index:>5}  {token:>7}  {text:<{width}}  {columns_after}".rstrip()


def _figure(number: float | None) -> str:
    """Returns a recomputed number with three significant digits; empty without a number."""
    return "" if number is None else f"{number:.3g}"


def _settings_words(settings: Mapping[str, float]) -> str:
    """Returns sampling settings as a continuation of a line: `, top_p 0.9`."""
    return "".join(f", {name} {setting:g}" for name, setting in settings.items())
