"""A server's port, bound before the server is imported, and the URL of a bound socket."""

from __future__ import annotations

import socket

from rftd.ops.errors import ConflictError
from rftd.ops.tls import ServerTls


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Returns a socket bound to the port but not listening yet; port 0 picks a free port.

    With `shared`, several processes of the same user listen on the port, and the kernel distributes connections among
    them. Raises ConflictError if the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio checks the protocol before disabling Nagle's algorithm. With the algorithm
    # enabled, an answer with separately written head and body waits 40 ms for the client's delayed acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A killed daemon leaves connections in TIME_WAIT; without this option a successor could not bind the port for a
    # minute.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _port_error(host, port, error) from error
    return bound


def listen(bound: socket.socket, backlog: int) -> None:
    """Lets clients connect to a bound socket. Raises ConflictError if another process now listens on the port."""
    try:
        bound.listen(backlog)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _port_error(host, port, error) from error


def _port_error(host: str, port: int, error: OSError) -> ConflictError:
    """Returns the error for a port that cannot be used, with the fix `--port 0`."""
    return ConflictError(
        f"cannot listen on {host}:{port}: {error.strerror}",
        field="--port",
        fix="use --port 0 for a free port, or stop the program that listens there",
    )


def url_of(bound: socket.socket, tls: ServerTls | None = None) -> str:
    """Returns the URL of a bound socket; with `tls`, an https URL, if possible with a host of the certificate."""
    host, port = bound.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    host = host if tls is None else tls.host_for(host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
