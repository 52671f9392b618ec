"""Check of the rules by which the daemon lets payloads and files go, and of what they give up."""

from __future__ import annotations

from collections.abc import Iterator

from rftd.daemon.client.client import Client
from rftd.daemon.output.quantity import lasting, size
from rftd.daemon.views.keeping import KeepingRules
from rftd.daemon.views.keeping import keeping as read_keeping
from rftd.ops.errors import RftdError
from rftd.ops.health import Diagnosis

_CHECK = "keeping"


def check_keeping(client: Client) -> Iterator[Diagnosis]:
    """The findings of the rules: what goes when, and where one rule defeats another."""
    try:
        rules = client.ask(read_keeping).value
    except RftdError:  # a daemon of another release, which is told beside
        return
    yield Diagnosis(_CHECK, "ok", f"{_of_payloads(rules)}; {_of_files(rules)}")
    if rules.archives_lack_payloads:
        what = "tokens go before what ended is archived, so archives lack them, and rftd restore cannot bring them back"
        fix = "let tokens go later than --archive-after, or leave that to the archive: it takes them out of the log"
        yield Diagnosis(_CHECK, "warn", what, fix)
    if rules.log_excess_bytes and rules.drop_payloads_above_bytes is not None:
        limit = size(rules.drop_payloads_above_bytes)
        what = f"the log takes {size(rules.log_excess_bytes)} more than {limit}, and no tokens are left that may go"
        fix = "archive or remove what ended, end forks, or serve with a larger --drop-payloads-above"
        yield Diagnosis(_CHECK, "warn", what, fix)


def _of_payloads(rules: KeepingRules) -> str:
    whens = []
    if rules.payloads == "until-trained":
        whens.append("once they are trained")
    elif rules.payloads == "until-ended":
        whens.append("when an experiment ends")
    if rules.drop_payloads_after_s is not None:
        whens.append(f"{lasting(rules.drop_payloads_after_s)} after the end of an experiment")
    if rules.drop_payloads_above_bytes is not None:
        whens.append(f"while the log takes more than {size(rules.drop_payloads_above_bytes)}, what ended first first")
    if not whens:
        return "tokens stay in the log until their experiment is archived or removed"
    return f"tokens leave the log {', and '.join(whens)}: those steps can then be neither replayed nor forked"


def _of_files(rules: KeepingRules) -> str:
    if rules.archive_after_s is None:
        return "files are archived on request only"
    return f"files are archived {lasting(rules.archive_after_s)} after the end of an experiment"
