"""`rftd stack`: a real Kafka and a real Postgres on this machine, for development and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rftd.daemon.cli.output.data import emit
from rftd.daemon.cli.output.terminal import say, say_command
from rftd.daemon.cli.settings import Settings, data_folder, shared_options

if TYPE_CHECKING:
    from pathlib import Path

    from rftd.daemon.stack.pair import Part

_PORT = click.IntRange(0, 65535)
"""Type of a port; 0: a free one."""


@click.group("stack")
def stack() -> None:
    """Run a real Apache Kafka and PostgreSQL on loopback, in DIR/stack of --data; needs pip install 'rftd[stack]'."""


@stack.command("up")
@click.option("--kafka-port", type=_PORT, default=0, help="Port. Default: the last one, else a free one.")
@click.option("--postgres-port", type=_PORT, default=0, help="Port. Default: the last one, else a free one.")
@shared_options
@click.pass_obj
def up(settings: Settings, kafka_port: int, postgres_port: int) -> None:
    """Start both, wait until they serve, and print the matching `rftd serve`. A running server is left alone."""
    from rftd.daemon.stack.pair import Stack

    servers = Stack(_stack_folder(settings))
    if settings.verbosity >= 0:
        say("starting Apache Kafka and PostgreSQL; the first time Kafka's jars (46 MB) are downloaded", err=True)
    servers.up(kafka_port=kafka_port, postgres_port=postgres_port)
    _print_servers(settings, *servers.parts())


@stack.command("down")
@click.option("--delete", is_flag=True, help="Delete their data too: every topic and every table.")
@shared_options
@click.pass_obj
def down(settings: Settings, delete: bool) -> None:
    """Stop both; their data is kept. It is not an error if a server is not running."""
    from rftd.daemon.stack.pair import Stack

    servers = Stack(_stack_folder(settings))
    servers.down(delete=delete)
    _print_servers(settings, *servers.parts())


@stack.command("status")
@shared_options
@click.pass_context
def status(ctx: click.Context) -> None:
    """Show the state of both. Exit 1 unless both run."""
    from rftd.daemon.stack.pair import Stack

    parts = Stack(_stack_folder(ctx.obj)).parts()
    _print_servers(ctx.obj, *parts)
    ctx.exit(0 if all(server.state == "running" for server in parts) else 1)


@stack.command("run")
@click.argument("which", metavar="kafka|postgres", type=click.Choice(["kafka", "postgres"]))
@click.option("--port", type=_PORT, default=0, help="Port. Default: the last one, else a free one.")
@shared_options
@click.pass_obj
def run(settings: Settings, which: str, port: int) -> None:
    """Run one of them in the foreground until SIGTERM or Ctrl-C, for honcho or systemd."""
    import asyncio

    from rftd.daemon.stack.kafka import KafkaBroker
    from rftd.daemon.stack.pair import run_until_told
    from rftd.daemon.stack.postgres import PostgresServer

    folder = _stack_folder(settings) / which
    server: KafkaBroker | PostgresServer
    if which == "kafka":
        server = broker = KafkaBroker(folder, port=port)
        ready = f"kafka ready at {broker.bootstrap}"
    else:
        server = database = PostgresServer(folder, port=port)
        ready = f"postgres ready at {database.url_without_password}, its password in {database.pass_file}"
    asyncio.run(run_until_told(server, lambda: say(ready)))


def _stack_folder(settings: Settings) -> Path:
    """Returns the folder of both servers."""
    from pathlib import Path

    return Path(data_folder(settings)).absolute() / "stack"


def _print_servers(settings: Settings, kafka: Part, postgres: Part) -> None:
    """Prints the state of both servers, and the matching `rftd serve` once both run."""
    from rftd.daemon.stack.pair import serve_line

    both = kafka.state == postgres.state == "running"
    line = serve_line(kafka, postgres, settings.data) if both else None
    if settings.machine_readable:
        import msgspec

        emit({"kafka": msgspec.to_builtins(kafka), "postgres": msgspec.to_builtins(postgres), "serve": line}, settings)
        return
    if settings.verbosity < 0:
        return
    from rftd.daemon.cli.output.table import console_of, state, table

    rows = [
        (server.name, state(server.state), server.url or "-", str(server.pid or "-"), server.folder)
        for server in (kafka, postgres)
    ]
    headers = ("SERVER", "STATE", "URL", "PID", "FOLDER")
    console = console_of(settings)
    # Addresses are meant to be copied; the folder is the one of --data.
    whole = ("URL", "FOLDER")
    console.print(table(headers, rows, right=("PID",), whole=whole, width=console.width, first_to_go=("FOLDER",)))
    if line is not None:
        say_command("next: ", line)
