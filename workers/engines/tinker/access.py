"""The way to the service: its key, which comes from the environment alone, its address, and how its errors read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rftd.ops.errors import ConfigError, DataError, RftdError, UnreachableError, WorkError
from rftd.ops.outbound import web_address
from rftd.ops.redaction import MASK, Secret
from rftd.streams.spec.reach import OWNERS, ReachSpec

KEYS: Final = ("TINKER_API_KEY", "TRINITY_API_KEY")
"""The variables that may hold the key; the first that is set counts."""
BASE_URL: Final = "TINKER_BASE_URL"
"""The variable with the service's address, where no file has one."""
FIELD: Final = "model.tinker"
UNREADABLE: Final = -1
"""In place of a status: an answer came, and the package cannot read it."""
_SAID_CHARS: Final = 300
_FITTING: Final = "install a release of tinker that fits the service"


class Access:
    """A key and an address, as one process has them."""

    def __init__(self, key: Secret, variable: str, base_url: str) -> None:
        """`variable` has the key; `base_url` is empty for the service's own address."""
        self.key = key
        self.variable = variable
        self.base_url = base_url

    @classmethod
    def of(cls, base_url: str, environ: Mapping[str, str], reach: ReachSpec = OWNERS) -> Access:
        """The way of an experiment that may reach so far.

        Raises ConfigError, which names the variables and never shows a value, if no key is there, or none that may be
        sent to that address.
        """
        # A variable of the explorer's may name another one than the package's own.
        asked = base_url or environ.get(BASE_URL, "").strip()
        if asked:
            reach.check(asked, field=f"{FIELD}.base_url", variable="" if base_url else BASE_URL)
        for variable in KEYS:
            if not _may_use(variable, asked, reach):
                continue
            if value := environ.get(variable, "").strip():
                return cls(Secret(value), variable, asked)
        if reach.restricted:
            raise ConfigError(
                f"no key of the Tinker service is given to this experiment for {FIELD}.base_url",
                field=FIELD,
                fix=f"have the owner of the daemon set {KEYS[0]}, and allow it for the service's host",
            )
        raise ConfigError(
            f"no key of the Tinker service: neither {' nor '.join(KEYS)} is set here",
            field=FIELD,
            fix=f"export {KEYS[0]} where the workers run, then start the daemon (or the worker) anew",
        )

    @property
    def place(self) -> str:
        """The service, in words."""
        return f"the Tinker service at {self.base_url}" if self.base_url else "the Tinker service"

    def error(self, status: int, said: str, doing: str) -> RftdError:
        """The error for an answer that is none; status 0: nothing came; `UNREADABLE`: nothing that the package knows.

        `said` may quote what was sent: the key is masked in it.
        """
        text = said.replace(self.key.reveal(), MASK)[:_SAID_CHARS]
        if status in (401, 403):
            return ConfigError(
                f"{self.place} refuses the key of {self.variable} ({status})",
                field=FIELD,
                fix=f"export a valid {self.variable} where the workers run, then start the daemon (or the worker) anew",
            )
        if status == 402:
            return ConfigError(
                f"{self.place} wants to be paid ({status}): {text}", field=FIELD, fix="settle the account"
            )
        if status == UNREADABLE:
            return WorkError(f"{self.place} was to {doing}, and what it answered cannot be read: {text}", fix=_FITTING)
        if status == 422:
            return WorkError(f"{self.place} cannot read what it was sent to {doing} ({status}): {text}", fix=_FITTING)
        if status == 0:
            return UnreachableError(
                f"{self.place} did not answer while it was to {doing}: {text}",
                fix="nothing: it is asked again; if it lasts, see whether the address and the network are right",
            )
        return WorkError(f"{self.place} did not {doing} ({status}): {text}", fix="nothing: it is tried again")

    def no_key(self, said: str) -> ConfigError:
        """The error for a key that the package does not even send."""
        text = said.replace(self.key.reveal(), MASK)[:_SAID_CHARS]
        return ConfigError(
            f"the text of {self.variable} is no key of the Tinker service: {text}",
            field=FIELD,
            fix=f"export a valid {self.variable} where the workers run, then start the daemon (or the worker) anew",
        )

    def unknown_model(self, base_model: str, said: str) -> ConfigError:
        """The error for a model that the service does not have."""
        text = said.replace(self.key.reveal(), MASK)[:_SAID_CHARS]
        return ConfigError(
            f"{self.place} does not know the model {base_model!r}: {text}",
            field=f"{FIELD}.base_model",
            fix="write the name of one that it has, such as Qwen/Qwen3-8B",
        )

    def forgotten(self, path: str, said: str) -> DataError:
        """The error for a state that the service does not have any more."""
        text = said.replace(self.key.reveal(), MASK)[:_SAID_CHARS]
        return DataError(
            f"{self.place} has forgotten {path}: {text}",
            where=path,
            fix="nothing: training goes on from the newest checkpoint that it still has",
        )


def _may_use(variable: str, base_url: str, reach: ReachSpec) -> bool:
    """True if the key of a variable may be read, and sent to the address; the service's own if that is empty."""
    if not base_url:
        return reach.may_read(variable)
    return reach.may_send(variable, web_address(base_url, field=f"{FIELD}.base_url"))
