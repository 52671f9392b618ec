"""`rftd demo`: trains a tiny model through the log."""

from __future__ import annotations

import click

from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options


@click.command("demo")
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed of the model, the data split and the sampling."
)
@click.option("--folder", type=click.Path(), help="Folder for all files. Default: a new one below ./out.")
@click.option("-s", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a field of the experiment; repeatable.")
@click.option(
    "--bar", type=float, default=0.4, show_default=True, help="Exit 1 unless held-out accuracy rises by this much."
)
@click.option(
    "--stack",
    type=click.Choice(["embedded", "kafka"]),
    default="embedded",
    show_default=True,
    help="Log and tables in files, or on a real Kafka and Postgres started for the demo.",
)
@click.option(
    "--engine",
    type=click.Choice(["torch", "vllm"]),
    default="torch",
    show_default=True,
    help="Engine for the rollouts; vllm must be installed.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page of the run in a browser; implies --keep.")
@click.option("--keep", is_flag=True, help="Keep the daemon running after the run, until Ctrl-C.")
@shared_options
@click.pass_obj
def command(
    settings: Settings,
    seed: int,
    folder: str | None,
    overrides: tuple[str, ...],
    bar: float,
    stack: str,
    engine: str,
    opens: bool,
    keep: bool,
) -> None:
    """Make a tiny model and a task, train the model (SFT, then asynchronous GRPO), and show what it learned."""
    import signal
    import sys
    from pathlib import Path

    from rftd.daemon.cli.verbs.open import show_link
    from rftd.daemon.demo.demo import run_demo
    from rftd.ops.clock import SystemClock, iso
    from rftd.ops.ids import SystemIds

    # A terminated demo also ends its daemon.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    clock = SystemClock()
    stamp = iso(clock.now_ns())[:19].translate(str.maketrans("", "", "-:T"))
    target = Path(folder or f"out/demo-{stamp}").absolute()
    risen = run_demo(
        target,
        seed=seed,
        overrides=overrides,
        bar=bar,
        clustered=stack == "kafka",
        engine=engine,
        timeout_s=settings.answer_timeout_s,
        keep=keep or opens,
        show=show_link if opens else None,
        ids=SystemIds(clock),
        echo=say,
    )
    sys.exit(0 if risen else 1)
