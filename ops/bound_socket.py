"""A bound socket: the port of a server, which is taken before the server is imported, and its URL."""

from __future__ import annotations

import socket

from rftd.ops.errors import ConflictError
from rftd.ops.tls import ServerTls


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket bound to the port, on which nobody can connect yet; port 0 picks a free one.

    Processes of one user that all say `shared` listen on one port, and the kernel spreads connections over them.
    Raises ConflictError if the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio looks at it before it turns off Nagle's algorithm. With that, an answer
    # whose head and body are written apart waits 40 ms for the client's delayed acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A daemon that was killed leaves connections in TIME_WAIT; without this its successor could not have the port for
    # a minute.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _taken(host, port, error) from error
    return bound


def listen(bound: socket.socket, backlog: int) -> None:
    """Lets clients connect to a bound socket. Raises ConflictError if another process listens on its port by now."""
    try:
        bound.listen(backlog)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _taken(host, port, error) from error


def _taken(host: str, port: int, error: OSError) -> ConflictError:
    return ConflictError(
        f"cannot listen on {host}:{port}: {error.strerror}",
        field="--port",
        fix="give --port 0 for a free one, or end what listens there",
    )


def url_of(bound: socket.socket, tls: ServerTls | None = None) -> str:
    """The address of a bound socket, as a URL; with `tls` one whose host the certificate is for."""
    host, port = bound.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    host = host if tls is None else tls.host_for(host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
