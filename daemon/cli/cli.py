"""`rftd`: the command line. A table of verbs, each imported only when it is called."""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

from rftd.daemon.cli.settings import current, shared_options


class Verb(NamedTuple):
    """The import path of a verb's click command, and the verb's line in `rftd --help`."""

    target: str
    """Import path of the click command, as `module:attribute`."""
    help: str
    """Line of the verb in `rftd --help`."""


_VERBS_PACKAGE: Final = "rftd.daemon.cli.verbs"
"""Package of the verbs' modules."""
VERBS: Final = {
    "serve": Verb(
        f"{_VERBS_PACKAGE}.serve:command", "Run the daemon: event log, tables, HTTP API and workers in one command."
    ),
    "open": Verb(f"{_VERBS_PACKAGE}.open:command", "Open the daemon in a browser, by a link that signs it in once."),
    "page": Verb(f"{_VERBS_PACKAGE}.page:command", "Open the page in a browser, with --demo of a recorded run."),
    "studio": Verb(f"{_VERBS_PACKAGE}.open:studio", "Open the form for a new experiment in a browser."),
    "token": Verb(
        f"{_VERBS_PACKAGE}.token:token", "Add, list, remove or rotate the tokens that let others use the daemon."
    ),
    "demo": Verb(f"{_VERBS_PACKAGE}.demo:command", "Train a tiny model on this machine, in about a minute."),
    "stack": Verb(f"{_VERBS_PACKAGE}.stack:stack", "Run a real Kafka and Postgres on this machine, for development."),
    "submit": Verb(f"{_VERBS_PACKAGE}.submit:command", "Submit the experiment in a YAML file."),
    "try": Verb(
        f"{_VERBS_PACKAGE}.try_:command", "Run one task of a file with the untrained model, and show every step."
    ),
    "run": Verb(f"{_VERBS_PACKAGE}.run:command", "Run the experiment in a YAML file to its end, as trinity run does."),
    "fork": Verb(f"{_VERBS_PACKAGE}.submit:fork", "Start a new experiment from a step of another one, with changes."),
    "sweep": Verb(
        f"{_VERBS_PACKAGE}.sweep:command", "Submit a sweep: experiments that differ in a few fields, and seeds."
    ),
    "sweeps": Verb(f"{_VERBS_PACKAGE}.sweep:group", "List sweeps, show the table of one while it runs, or cancel it."),
    "ls": Verb(f"{_VERBS_PACKAGE}.ls:command", "List the experiments."),
    "get": Verb(f"{_VERBS_PACKAGE}.get:command", "Show one experiment: progress, rewards, weights, workers."),
    "watch": Verb(f"{_VERBS_PACKAGE}.watch:command", "Follow an experiment until it ends."),
    "steps": Verb(
        f"{_VERBS_PACKAGE}.steps:command", "Show the training steps of an experiment: reward, loss, speed, any figure."
    ),
    "evals": Verb(
        f"{_VERBS_PACKAGE}.evals:command",
        "Show the evaluations of an experiment, the answers of one, or two side by side.",
    ),
    "compare": Verb(
        f"{_VERBS_PACKAGE}.compare:command",
        "Compare experiments: differences of their files, and figures at equal steps.",
    ),
    "timeline": Verb(
        f"{_VERBS_PACKAGE}.timeline:command", "Show the work of an experiment's workers over time, and idle spans."
    ),
    "checkpoints": Verb(f"{_VERBS_PACKAGE}.checkpoints:command", "List an experiment's checkpoints, or download one."),
    "report": Verb(
        f"{_VERBS_PACKAGE}.report:command", "Write an experiment as one HTML file: curves, samples, configuration."
    ),
    "track": Verb(
        f"{_VERBS_PACKAGE}.track:track", "Write an experiment to a tracker: TensorBoard, W&B, MLflow, JSON Lines."
    ),
    "logs": Verb(f"{_VERBS_PACKAGE}.logs:command", "Show the log lines of an experiment's workers, merged by time."),
    "tasks": Verb(
        f"{_VERBS_PACKAGE}.tasks:tasks", "Add tasks to an experiment while it runs, list its queues, or end one."
    ),
    "events": Verb(f"{_VERBS_PACKAGE}.events:command", "Show the events of an experiment, from the log."),
    "experiences": Verb(f"{_VERBS_PACKAGE}.experiences:command", "List an experiment's experiences, or show one."),
    "why": Verb(
        f"{_VERBS_PACKAGE}.why:command", "Show what each role of an experiment waits for, and what would unblock it."
    ),
    "lineage": Verb(
        f"{_VERBS_PACKAGE}.lineage:command",
        "Show what a batch, experience or weight version was made from, and what it led to.",
    ),
    "dlq": Verb(f"{_VERBS_PACKAGE}.dlq:dlq", "List, retry or drop dead letters: records and tasks that failed."),
    "pause": Verb(f"{_VERBS_PACKAGE}.transitions:pause", "Pause running experiments."),
    "resume": Verb(f"{_VERBS_PACKAGE}.transitions:resume", "Resume paused experiments."),
    "cancel": Verb(f"{_VERBS_PACKAGE}.transitions:cancel", "Cancel experiments; what they produced is kept."),
    "prioritize": Verb(
        f"{_VERBS_PACKAGE}.transitions:prioritize", "Change the priority of an experiment in the queue."
    ),
    "note": Verb(
        f"{_VERBS_PACKAGE}.note:command", "Add a note, a star or labels to an experiment or a rollout; or show them."
    ),
    "archive": Verb(
        f"{_VERBS_PACKAGE}.keeping:archive", "Move the files of an experiment that has ended into one archive file."
    ),
    "restore": Verb(f"{_VERBS_PACKAGE}.keeping:restore", "Restore the files of an archived experiment."),
    "rm": Verb(
        f"{_VERBS_PACKAGE}.keeping:rm", "Delete the files of an experiment that has ended; its events stay in the log."
    ),
    "gc": Verb(f"{_VERBS_PACKAGE}.keeping:gc", "Delete files that no event refers to."),
    "convert": Verb(
        f"{_VERBS_PACKAGE}.convert:command", "Convert checkpoints of rftd, FSDP or Megatron to Hugging Face's format."
    ),
    "config": Verb(
        f"{_VERBS_PACKAGE}.config:config_group", "Check an experiment file, or print it as the daemon reads it."
    ),
    "import-verl": Verb(f"{_VERBS_PACKAGE}.import_verl:command", "Convert a veRL run to an experiment file."),
    "sim": Verb(
        f"{_VERBS_PACKAGE}.sim:sim_group", "Forecast the throughput and staleness of an experiment before running it."
    ),
    "doctor": Verb(
        f"{_VERBS_PACKAGE}.doctor:command",
        "Check this machine, its daemon and an experiment file; each finding has a fix.",
    ),
    "verify": Verb(f"{_VERBS_PACKAGE}.verify:command", "Check a log against the rules, with or without a daemon."),
    "replay": Verb(
        f"{_VERBS_PACKAGE}.replay:command",
        "Repeat the training of an experiment from the log, and compare the weights.",
    ),
    "rebuild": Verb(f"{_VERBS_PACKAGE}.rebuild:command", "Rebuild the state database from the log."),
    "backup": Verb(f"{_VERBS_PACKAGE}.backup:command", "Copy the daemon's folder, while it runs, into a new folder."),
    "export": Verb(f"{_VERBS_PACKAGE}.export:command", "Export a whole experiment to one file."),
    "import": Verb(f"{_VERBS_PACKAGE}.export:import_", "Import an exported experiment into this log."),
    "explain": Verb(f"{_VERBS_PACKAGE}.explain:command", "Explain an error code and how to fix the error."),
    "completion": Verb(f"{_VERBS_PACKAGE}.installation:completion", "Print the completion script for a shell."),
    "version": Verb(f"{_VERBS_PACKAGE}.installation:version", "Show the versions of this program and of the daemon."),
    "worker": Verb(f"{_VERBS_PACKAGE}.worker:command", "Run one worker process; usually the daemon starts it."),
}
"""Every verb, in the order of the help; a new one is one file and one line here."""

READER_GONE: Final = 141
"""Exit status after the reader of standard output has closed the pipe: the status of a program ended by SIGPIPE."""
HIDDEN: Final = frozenset({"run", "worker"})
"""Verbs omitted from the help."""


OTHER_WORDS: Final = {
    **dict.fromkeys(("abort", "kill", "stop", "terminate"), "cancel"),
    **dict.fromkeys(("experiments", "jobs", "list", "ps", "queue"), "ls"),
    **dict.fromkeys(("describe", "info", "inspect", "show", "status"), "get"),
    **dict.fromkeys(("log", "tail"), "logs"),
    **dict.fromkeys(("follow", "top"), "watch"),
    **dict.fromkeys(("delete", "del", "remove"), "rm"),
    **dict.fromkeys(("create", "launch", "train"), "submit"),
    **dict.fromkeys(("daemon", "server", "start", "up"), "serve"),
    **dict.fromkeys(("continue", "unpause"), "resume"),
    "fsck": "verify",
    **dict.fromkeys(("metrics", "plot"), "steps"),
    "diff": "compare",
}
"""Verb suggested for each word known from other programs; spelling alone might suggest another verb."""


class LazyGroup(click.Group):
    """A group importing each verb only for running it, so `rftd --help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of the verbs in the help, in the order of the help."""
        return [name for name in VERBS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns the command of a verb; None for an unknown word."""
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
        # Before click resolves the word: resolving imports the verb, and every verb would be imported to find a similar
        # one.
        """Returns the command of the first word. Raises UsageError for an unknown word, suggesting a similar verb."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            meant = OTHER_WORDS.get(args[0].lower())
            near = [meant] if meant else difflib.get_close_matches(args[0], list(VERBS), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; exits with `READER_GONE`, without a message, if the reader of standard output has closed
        the pipe.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader has gone. The status reported by a shell for programs ended by SIGPIPE: click's 1 means a
            # failed check.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter would flush the pipe once more
            ctx.exit(READER_GONE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the verbs' lines of the help, without importing the verbs."""
        with formatter.section("Commands"):
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
    """Reinforcement fine-tuning of language models, with an event log as the single source of truth."""
    ctx.obj = current(ctx)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status; every error is printed on standard error."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    # Objects imported at the start stay: the collector would walk them dozens of times, and find nothing.
    gc.set_threshold(50_000, 20, 100)
    try:
        # Not click's standalone mode: click would end the process itself, and print errors without code and fix.
        status = rftd.main(args=list(arguments), prog_name="rftd", standalone_mode=False)
    except click.ClickException as error:
        from rftd.daemon.cli.output.failure import misuse

        return misuse(error, arguments)
    # 130 is a shell's status for Ctrl-C.
    except click.Abort:
        return 130
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception as error:
        from rftd.daemon.cli.output.failure import fail

        return fail(error, arguments)
    return status if isinstance(status, int) else 0
