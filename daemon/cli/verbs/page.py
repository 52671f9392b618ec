"""`rftd page`: the page of a recorded run in a browser, without a daemon of one's own."""

from __future__ import annotations

import click

from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options


@click.command("page")
@click.option("--demo", is_flag=True, help="Serve the recorded run of a demo until Ctrl-C; no daemon is needed.")
@click.option("--print", "only_print", is_flag=True, help="Print the link; open no browser.")
@shared_options
@click.pass_context
def command(context: click.Context, demo: bool, only_print: bool) -> None:
    """Open the page in a browser: of the daemon, as `rftd open` does, or of a recorded run of the demo."""
    from rftd.daemon.cli.verbs.open import command as open_command
    from rftd.daemon.cli.verbs.open import show_link

    if not demo:
        context.invoke(open_command, only_print=only_print)
        return
    import signal
    import sys

    from rftd.daemon.demo.demo import stay
    from rftd.daemon.demo.recording import serve_recording
    from rftd.daemon.http.client.client import Client
    from rftd.daemon.http.views import access

    settings: Settings = context.obj
    # A terminated page also ends its daemon.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with serve_recording() as host:
        with Client(host.settings, {}) as client:
            url = client.url + client.send(access.new_link, access.NewLink()).value.path
        if only_print:
            click.echo(url)
        else:
            show_link(url)
        if settings.verbosity >= 0:
            say("a recorded run of the demo, without workers; Ctrl-C ends it", err=True)
        stay(host)
