"""`rftd open` and `rftd studio`: sign a browser in at the daemon, by a one-time link."""

from __future__ import annotations

import os
import sys

import click

from rftd.daemon.cli.output.data import emitted
from rftd.daemon.cli.output.terminal import say
from rftd.daemon.cli.settings import Settings, shared_options
from rftd.daemon.http.views import access


@click.command("open")
@click.option("--print", "only_print", is_flag=True, help="Print the link; open no browser.")
@shared_options
@click.pass_obj
def command(settings: Settings, only_print: bool) -> None:
    """Open the daemon in a browser, signed in with the rights of your token. The link works once, for five minutes."""
    _open(settings, only_print=only_print, to="/")


@click.command("studio")
@click.option("--print", "only_print", is_flag=True, help="Print the link; open no browser.")
@shared_options
@click.pass_obj
def studio(settings: Settings, only_print: bool) -> None:
    """Open the form for a new experiment in a browser: ten fields or all, checked as you type."""
    _open(settings, only_print=only_print, to="/studio")


def _open(settings: Settings, *, only_print: bool, to: str) -> None:
    from rftd.daemon.http.client.client import Client

    with Client(settings) as client:
        link = client.send(access.new_link, access.NewLink()).value
        url = client.url + link.path
    if to != "/":
        url += f"{'&' if '?' in link.path else '?'}to={to}"
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
