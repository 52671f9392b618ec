"""`rftd open` and `rftd studio`: sign a browser in at the daemon, by a one-time link."""

from __future__ import annotations

import os
import sys
from typing import Final
from urllib.parse import quote

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.http.views import access

_NO_FILE: Final = access.NewLink()
"""Body of a request for a link without a file."""


@click.command("open")
@click.option("--print", "only_print", is_flag=True, help="Print the link; open no browser.")
@shared_options
@click.pass_obj
def command(settings: Settings, only_print: bool) -> None:
    """Open the daemon in a browser, signed in with the rights of your token. The link works once, for five minutes."""
    _open_link(settings, only_print=only_print, to="/")


@click.command("studio")
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option("--print", "only_print", is_flag=True, help="Print the link; open no browser.")
@shared_options
@click.pass_obj
def studio(settings: Settings, file: str | None, only_print: bool) -> None:
    """Open the form for a new experiment in a browser: ten fields or all, checked as you type.

    With FILE (- for standard input), the form begins with this experiment file, its paths made absolute; a `${...}`
    stays as written.
    """
    link = access.NewLink()
    if file is not None:
        from rftd.daemon.cli.verbs.arguments import read_experiment
        from rftd.daemon.config.loading import form_text

        text, origin = read_experiment(file)
        link = access.NewLink(file=form_text(text, origin), name=origin[-200:])
    _open_link(settings, only_print=only_print, to="/studio", new_link=link)


def _open_link(settings: Settings, *, only_print: bool, to: str, new_link: access.NewLink = _NO_FILE) -> None:
    """Requests a one-time link to the path `to` of the daemon, and opens or prints it."""
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        link = client.send(access.new_link, new_link).value
        url = client.url + link.path
    if to != "/":
        onward = f"{to}?opened={link.opened}" if link.opened else to
        url += f"{'&' if '?' in link.path else '?'}to={quote(onward, safe='/')}"
    if emitted({"url": url, "role": link.role}, settings):
        return
    if only_print:
        click.echo(url)
        return
    if show_link(url):
        say(f"opened in your browser, with the role {link.role}")


def show_link(url: str) -> bool:
    """Opens an address in a graphical browser, else prints the address. True if a browser was opened."""
    import webbrowser

    if _has_screen() and webbrowser.open(url):
        return True
    click.echo(url)
    return False


def _has_screen() -> bool:
    """True if a graphical browser can be shown to the user: a text browser in a script would only wait."""
    graphical = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return graphical and sys.stdout.isatty()
