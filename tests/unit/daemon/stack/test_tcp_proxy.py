"""The proxy breaks a network as it says: fault tests rest on it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from synthetic.faults.tcp_proxy import TcpProxy


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that answers each byte with itself."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while chunk := connection.recv(65536):
                    connection.sendall(chunk)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[TcpProxy]:
    with TcpProxy(echo) as made:
        yield made


def connected(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 10)


def said(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(65536)


def silent(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return connection.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)


def test_bytes_pass_and_are_counted(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        assert said(client, b"hello") == b"hello"
        assert (proxy.accepted, proxy.connections) == (1, 1)
        assert (proxy.request_bytes, proxy.answer_bytes) == (5, 5)
        large, heard = bytes(3_000_000), 0
        sender = threading.Thread(target=client.sendall, args=(large,))
        sender.start()
        while heard < len(large):
            heard += len(client.recv(1 << 20))
        sender.join()
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""  # the end of a stream passes, both ways


def test_a_cut_resets_what_is_there_and_what_comes(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        assert said(client, b"a") == b"a"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(OSError), connected(proxy) as client:
        assert said(client, b"b") == b"b"
    proxy.heal()
    with connected(proxy) as client:
        assert said(client, b"c") == b"c"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_black_hole_holds_bytes_back_until_healed(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        assert said(client, b"a") == b"a"
        proxy.black_hole()
        client.sendall(b"b")
        with connected(proxy) as second:
            second.sendall(b"c")
            assert silent(client)
            assert silent(second)
            assert proxy.request_bytes == 1
            proxy.heal()
            assert client.recv(9) == b"b"
            assert second.recv(9) == b"c"


def test_half_open_lets_the_target_hear_and_the_client_wait(proxy: TcpProxy) -> None:
    with connected(proxy) as client:
        assert said(client, b"a") == b"a"
        proxy.half_open()
        client.sendall(b"b")
        assert silent(client)
        assert (proxy.request_bytes, proxy.answer_bytes) == (2, 1)
        proxy.heal(reset=True)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_delay_is_felt_each_way(proxy: TcpProxy) -> None:
    proxy.delay(0.3)
    with connected(proxy) as client:
        client.sendall(b"a")
        assert silent(client)
        assert client.recv(1) == b"a"


def test_a_dead_target_is_a_reset(proxy: TcpProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        proxy.aim(gone.getsockname()[1])
    with pytest.raises(ConnectionResetError), connected(proxy) as client:
        client.recv(1)
