"""`rftd experiences`: what rollouts left, and where each of it went."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import click

from rftd.daemon.settings import Settings, shared_options
from rftd.daemon.verbs.names import experiment_argument

if TYPE_CHECKING:
    from rftd.daemon.client.replies import Experience, ExperiencePage

STATES = ("open", "waiting", "cooling", "planned", "retired", "late")
ORDERS = ("newest", "oldest", "reward", "-reward", "staleness", "-staleness")


@click.group("experiences")
def command() -> None:
    """List an experiment's experiences, show one, or compare the lengths of what was generated and trained."""


@command.command("ls")
@experiment_argument
@click.option("--step", metavar="A:B", help="Planned for the steps A to B; also A, A: or :B.")
@click.option("--reward", metavar="'>0.8'", help="Compared with >, >=, <, <= or =.")
@click.option("--staleness", metavar="'>4'", help="In versions, when it was planned; compared likewise.")
@click.option("--state", type=click.Choice(STATES), help="Where it is.")
@click.option("--stage", type=click.IntRange(0), help="Number of the stage, from 0.")
@click.option("--order", type=click.Choice(ORDERS), default="newest", show_default=True)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Most lines.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many.")
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
    order: str,
    limit: int,
    offset: int,
) -> None:
    """List experiences of experiment NAME."""
    from rftd.daemon.client.client import Client

    first, last = _span(step)
    low, high = _bounds(reward, "--reward")
    least, most = _bounds(staleness, "--staleness")
    parameters = {
        "first_step": first,
        "last_step": last,
        "min_reward": low,
        "max_reward": high,
        "min_staleness": None if least is None else max(0, math.ceil(least)),
        "max_staleness": None if most is None else math.floor(most),
        "state": state,
        "stage": stage,
        "order": order,
        "limit": limit,
        "offset": offset,
    }
    with Client(settings) as client:
        answer = client.experiences(name, parameters)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(answer.plain(), settings)
        return
    from rftd.daemon.output.table import console_of, table

    headers = ("EXPERIENCE", "STATE", "REWARD", "TOKENS", "VERSIONS", "STEP", "STALE", "USES", "FINISH", "PRODUCED")
    right = frozenset({"REWARD", "TOKENS", "VERSIONS", "STEP", "STALE", "USES"})
    console_of(settings).print(table(headers, [_row(row) for row in answer.value.items], right=right))
    if answer.value.next is not None and settings.verbosity >= 0:
        click.echo(f"there are more: --offset {answer.value.next}", err=True)


@command.command("show")
@experiment_argument
@click.argument("id")
@click.option("--tokens", is_flag=True, help="Token ids, mask and log-probabilities too.")
@shared_options
@click.pass_obj
def show(settings: Settings, name: str, id: str, tokens: bool) -> None:
    """Show experience ID of experiment NAME, with the weight versions that drew it."""
    from rftd.daemon.client.client import Client

    with Client(settings) as client:
        answer = client.experience(name, id, tokens=tokens)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(answer.plain(), settings)
        return
    click.echo(_page(answer.value))


@command.command("prioritize", context_settings={"ignore_unknown_options": True})
@experiment_argument
@click.argument("id")
@click.argument("priority", type=float)
@click.option("--reason", default="", help="Kept with the event.")
@click.option("--request-id", metavar="ID", help="Sent again with the same id, the command changes nothing.")
@shared_options
@click.pass_obj
def prioritize(settings: Settings, name: str, id: str, priority: float, reason: str, request_id: str | None) -> None:
    """Set the PRIORITY of experience ID of experiment NAME, and of its whole group: the highest is trained first.

    It is the tag that its workflow gave it, 0 by default; a replay buffer's priority function adds to it.
    """
    from rftd.daemon.client.client import Client
    from rftd.daemon.verbs.submit import new_id

    with Client(settings) as client:
        sent = client.tag(name, id, priority, reason=reason, request_id=request_id or new_id()).value
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit({"id": sent.id, "experience": id, "priority": priority, "event": sent.event}, settings)
    elif settings.verbosity >= 0:
        click.echo(f"{id}  priority {priority:g}  {sent.event}")


@command.command("give-up")
@experiment_argument
@click.argument("id")
@click.option("--reason", default="", help="Kept with the event.")
@click.option("--request-id", metavar="ID", help="Sent again with the same id, the command changes nothing.")
@shared_options
@click.pass_obj
def give_up(settings: Settings, name: str, id: str, reason: str, request_id: str | None) -> None:
    """Give up experience ID of experiment NAME, whose payload is gone for good.

    It is retired. A batch that holds it and was never executed is abandoned, with those after it: their other
    experiences return, and are planned anew. What was trained before cannot be given up.
    """
    from rftd.daemon.client.client import Client
    from rftd.daemon.verbs.submit import new_id

    with Client(settings) as client:
        sent = client.give_up(name, id, reason=reason, request_id=request_id or new_id()).value
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit({"id": sent.id, "experience": id, "event": sent.event}, settings)
    elif settings.verbosity >= 0:
        click.echo(f"{id}  given up  {sent.event}")


@command.command("lengths")
@experiment_argument
@click.option("--stage", type=click.IntRange(0), help="Of one stage only: its number, from 0.")
@shared_options
@click.pass_obj
def lengths(settings: Settings, name: str, stage: int | None) -> None:
    """Compare the lengths of responses that experiment NAME generated and trained.

    Long responses take long, grow stale and are dropped first, and then the model learns from short ones. The test of
    Kolmogorov and Smirnov tells: a p below 0.05 means that what was dropped was not like the rest.
    """
    from rftd.daemon.client.client import Client

    with Client(settings) as client:
        answer = client.lengths(name, stage=stage)
    if settings.machine_readable:
        from rftd.daemon.output.data import emit

        emit(answer.plain(), settings)
        return
    from rftd.daemon.output.lengths import render
    from rftd.daemon.output.table import console_of

    console_of(settings).print(render(answer.value))


def _row(row: Experience) -> tuple[str, ...]:
    from rftd.daemon.output.quantity import number

    versions = (
        f"{row.oldest_version}"
        if row.oldest_version == row.newest_version
        else (f"{row.oldest_version}-{row.newest_version}")
    )
    return (
        row.id,
        f"{row.state} ({row.retired_reason})" if row.retired_reason else row.state,
        number(row.reward),
        f"{row.prompt_tokens}+{row.response_tokens}",
        versions,
        "-" if row.step is None else str(row.step),
        "-" if row.staleness_versions is None else str(row.staleness_versions),
        str(row.uses),
        row.finish,
        row.produced_at,
    )


def _page(page: ExperiencePage) -> str:
    row = page.experience
    where = f"{row.state}" + (f" ({row.retired_reason})" if row.retired_reason else "")
    lines = [
        f"experience  {row.id}",
        f"group       {row.group}, rollout {row.rollout}",
        f"state       {where}" + (f", step {row.step}, staleness {row.staleness_versions}" if row.step else ""),
        f"reward      {row.reward}",
        f"tokens      {row.prompt_tokens} prompt + {row.response_tokens} response, ended by {row.finish}",
    ]
    lines += [
        f"{'drawn by' if number == 0 else '':<12}version {span.version} (generation {span.generation}): "
        f"response tokens {span.start} to {span.end}"
        for number, span in enumerate(page.spans)
    ]
    if page.tokens is not None and page.logprobs is not None:
        prompt, response = page.tokens[: row.prompt_tokens], page.tokens[row.prompt_tokens :]
        mask = page.loss_mask or [1] * len(response)
        lines.append(f"prompt      {' '.join(map(str, prompt))}")
        lines += [
            f"  {index:>5}  {token:>7}  {logprob:>9.4f}  {'' if trained else 'not trained'}".rstrip()
            for index, (token, logprob, trained) in enumerate(zip(response, page.logprobs, mask, strict=False))
        ]
    return "\n".join(lines)


def _span(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text)
    if match is None or not (match[1] or match[3]):
        raise click.BadParameter(f"{text!r} is no range of steps: write 3, 3:7, 3: or :7", param_hint="--step")
    first = int(match[1]) if match[1] else None
    last = int(match[3]) if match[3] else (None if match[2] else first)
    return first, last


def _bounds(text: str | None, option: str) -> tuple[float | None, float | None]:
    """Inclusive bounds: the next number that can be written takes the place of a strict one."""
    if text is None:
        return None, None
    match = re.fullmatch(r"\s*(>=|<=|>|<|=)?\s*(-?\d+(?:\.\d+)?)\s*", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no comparison: write '>0.8', '<=2' or '=1'", param_hint=option)
    sign, value = match[1] or "=", float(match[2])
    if sign in (">", ">="):
        return (value if sign == ">=" else math.nextafter(value, math.inf)), None
    if sign in ("<", "<="):
        return None, (value if sign == "<=" else math.nextafter(value, -math.inf))
    return value, value
