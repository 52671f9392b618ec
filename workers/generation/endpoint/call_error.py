"""`CallError`: the reason for a refused or failed call, in the form expected by clients of OpenAI's API."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.ops.errors import RftdError

INVALID: Final = "invalid_request_error"
"""Type of an error in the request."""
SERVER: Final = "server_error"
"""Type of an error of the server."""


class CallError(RftdError):
    """A call to a rollout's endpoint was refused or failed; the agent program received the error."""

    code = "RFTD-CAL-001"
    """Code of the error."""
    remedy = "Correct the agent program's request: the error object that it received names the parameter."
    """Fix of the error."""
    http_status = 400
    """Default status of the reply."""

    def __init__(
        self, status: int, problem: str, *, kind: str = INVALID, reason: str | None = None, param: str | None = None
    ) -> None:
        """`status` is the HTTP status; `kind` and `reason` become the error object's `type` and `code`."""
        super().__init__(problem, field=param)
        self.status = status
        self.kind = kind
        self.reason = reason

    def body(self) -> bytes:
        """Returns the error object as JSON."""
        error = {"message": self.what, "type": self.kind, "param": self.field, "code": self.reason}
        return msgspec.json.encode({"error": error})

    def as_event(self) -> bytes:
        """Returns the error object as a server-sent event, for an answer already begun."""
        return b"data: %s\n\n" % self.body()


def unsupported(param: str, problem: str) -> CallError:
    """Returns the error for a parameter beyond the engine's abilities."""
    return CallError(400, problem, reason="unsupported_parameter", param=param)


def refusal(status: int, problem: str) -> tuple[bytes, bytes]:
    """Returns media type and body of the reply to a request refused before it became a call."""
    return b"application/json", CallError(status, problem, kind=SERVER if status >= 500 else INVALID).body()


def bug_in_rftd() -> CallError:
    """Returns the error for an unexpected exception; the log has the details."""
    return CallError(500, "this is a bug in rftd, not in the request", kind=SERVER, reason="RFTD-BUG")
