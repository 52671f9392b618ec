"""`CallError`: why a call is not answered, as clients of OpenAI's API understand it."""

from __future__ import annotations

from typing import Final

import msgspec

from rftd.ops.errors import RftdError

INVALID: Final = "invalid_request_error"
"""The type of an error that lies in the request."""
SERVER: Final = "server_error"


class CallError(RftdError):
    """A call to a rollout's endpoint was refused or failed; the agent program received the error."""

    code = "RFTD-CAL-001"
    remedy = "Correct the agent program's request: the error object that it received names the parameter."
    http_status = 400

    def __init__(
        self, status: int, what: str, *, kind: str = INVALID, reason: str | None = None, param: str | None = None
    ) -> None:
        """`status` is that of HTTP; `kind` and `reason` become the error object's `type` and `code`."""
        super().__init__(what, field=param)
        self.status = status
        self.kind = kind
        self.reason = reason

    def body(self) -> bytes:
        """The error object, as JSON."""
        error = {"message": self.what, "type": self.kind, "param": self.field, "code": self.reason}
        return msgspec.json.encode({"error": error})

    def as_event(self) -> bytes:
        """The error object as a server-sent event, for an answer that had begun."""
        return b"data: %s\n\n" % self.body()


def unsupported(param: str, what: str) -> CallError:
    """The error of a parameter that asks for what the engine cannot do."""
    return CallError(400, what, reason="unsupported_parameter", param=param)


def refusal(status: int, what: str) -> tuple[bytes, bytes]:
    """The media type and body of an answer to what never became a call."""
    return b"application/json", CallError(status, what, kind=SERVER if status >= 500 else INVALID).body()


def bug_in_rftd() -> CallError:
    """The error of what should not happen; the log has its details."""
    return CallError(500, "this is a bug in rftd, not in the request", kind=SERVER, reason="RFTD-BUG")
