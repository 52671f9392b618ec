"""`rftd`: the command line. A table of verbs, each imported only when it is called."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import click

from rftd.daemon.settings import current, shared_options


class Verb(NamedTuple):
    """The import path of a verb's click command, and its line of `rftd --help`."""

    target: str
    help: str


_HERE: Final = "rftd.daemon.verbs"
VERBS: Final = {
    "serve": Verb(f"{_HERE}.serve:command", "Run the daemon: log, state, API and workers, in one command."),
    "demo": Verb(f"{_HERE}.demo:command", "Train a tiny model through the log, in a minute and a half."),
    "stack": Verb(f"{_HERE}.stack:stack", "A real Kafka and Postgres on this machine, for development."),
    "submit": Verb(f"{_HERE}.submit:command", "Hand in the experiment of a YAML file."),
    "fork": Verb(f"{_HERE}.fork:command", "Go on from a step of an experiment, with changes, in a new one."),
    "ls": Verb(f"{_HERE}.ls:command", "List the experiments."),
    "get": Verb(f"{_HERE}.get:command", "One page about one experiment."),
    "watch": Verb(f"{_HERE}.watch:command", "Follow an experiment until it ends."),
    "logs": Verb(f"{_HERE}.logs:command", "Log lines of an experiment's workers, merged by time."),
    "events": Verb(f"{_HERE}.events:command", "The events of an experiment, from the log."),
    "experiences": Verb(f"{_HERE}.experiences:command", "List an experiment's experiences, or show one."),
    "why": Verb(f"{_HERE}.why:command", "What each role of an experiment waits for, and what would unblock it."),
    "lineage": Verb(f"{_HERE}.lineage:command", "What a thing was made of, and what became of it."),
    "dlq": Verb(f"{_HERE}.dlq:dlq", "Dead letters: records and tasks that failed; retry or drop them."),
    "pause": Verb(f"{_HERE}.transitions:pause", "Pause running experiments."),
    "resume": Verb(f"{_HERE}.transitions:resume", "Let paused experiments go on."),
    "cancel": Verb(f"{_HERE}.transitions:cancel", "End experiments; what they produced stays."),
    "prioritize": Verb(f"{_HERE}.transitions:prioritize", "Change which experiment goes first in the queue."),
    "archive": Verb(f"{_HERE}.keeping:archive", "Put what has ended into files, and free its folder."),
    "restore": Verb(f"{_HERE}.keeping:restore", "Put archived files back."),
    "rm": Verb(f"{_HERE}.keeping:rm", "Remove the files of what has ended; its events stay."),
    "gc": Verb(f"{_HERE}.gc:command", "Remove files that no event names."),
    "config": Verb(f"{_HERE}.config:config_group", "Check an experiment file, or print it as the daemon reads it."),
    "sim": Verb(f"{_HERE}.sim:sim_group", "Forecast an experiment in virtual time: policy and sizes, before paying."),
    "doctor": Verb(f"{_HERE}.installation:doctor", "Check this machine, folder and daemon; each finding with its fix."),
    "verify": Verb(f"{_HERE}.verify:command", "Check a log against the rules, without a daemon."),
    "replay": Verb(f"{_HERE}.replay:command", "Train an experiment again from the log, and compare the weights."),
    "rebuild": Verb(f"{_HERE}.rebuild:command", "Make the state database anew from the log."),
    "export": Verb(f"{_HERE}.export:command", "Write an experiment, whole, to a file."),
    "import": Verb(f"{_HERE}.import_:command", "Load an exported experiment into this log."),
    "explain": Verb(f"{_HERE}.explain:command", "What an error code means and what to do."),
    "completion": Verb(f"{_HERE}.installation:completion", "Print the completion script of a shell."),
    "version": Verb(f"{_HERE}.installation:version", "Versions of this program and of the daemon."),
    "worker": Verb(f"{_HERE}.worker:command", "Run one worker process; the daemon calls it."),
}
"""Every verb, in the order of the help; a new one is one file and one line here."""

HIDDEN: Final = frozenset({"worker"})


class LazyGroup(click.Group):
    """A group that imports a verb only to run it, so that `rftd --help` costs nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in VERBS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        # Imported here and not above: `rftd --help` and each completion of a name have to answer within 150 ms of CPU.
        module, _, attribute = verb.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), verb.target
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Before click resolves it: resolving imports the verb, and every verb would be imported to find one that is
        # near.
        if args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], list(VERBS), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, VERBS[name].help) for name in self.list_commands(ctx)])


@click.group(
    "rftd",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with `rftd demo`, or with `rftd serve` and `rftd submit FILE`.",
)
@shared_options
@click.pass_context
def rftd(ctx: click.Context) -> None:
    """Reinforcement fine-tuning of language models, with an event log as the only truth."""
    ctx.obj = current(ctx)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status; every error is rendered on standard error."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # Not click's standalone mode: it would end the process itself, and print errors without their code and fix.
        status = rftd.main(args=list(arguments), prog_name="rftd", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    # 130 is what a shell reports for Ctrl-C.
    except click.Abort:
        return 130
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception as error:
        from rftd.daemon.output.failure import fail

        return fail(error, arguments)
    return status if isinstance(status, int) else 0
