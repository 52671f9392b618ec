"""Addresses: one parser, and no spelling of a private one that passes for a public one."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rftd.ops.errors import ConfigError
from rftd.ops.outbound import PrivateAddressError, check_url, host_and_port, web_address

PRIVATE = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4"),
]
PRIVATE_6 = ["::/127", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "2001:db8::/32"]
SPELLED: list[Callable[[int], str]] = [
    lambda n: str(IPv4Address(n)),
    lambda n: str(IPv4Address(n)) + ".",
    lambda n: str(n),
    lambda n: hex(n),
    lambda n: hex(n).upper().replace("0X", "0x"),
    lambda n: "0" + oct(n)[2:],
    lambda n: ".".join(hex(byte) for byte in n.to_bytes(4)),
    lambda n: ".".join(f"0{byte:o}" for byte in n.to_bytes(4)),
    lambda n: f"{n >> 24}.{n & 0xFFFFFF}",
    lambda n: f"{n >> 24}.{n >> 16 & 255}.{n & 0xFFFF}",
    lambda n: f"[::ffff:{IPv4Address(n)}]",
    lambda n: f"[{IPv6Address(0xFFFF << 32 | n)}]",
    lambda n: f"[64:ff9b::{IPv4Address(n)}]",
    lambda n: f"[{IPv6Address(0x2002 << 112 | n << 80)}]",
    lambda n: f"[::ffff:0:{IPv4Address(n)}]",
    lambda n: "".join(chr(ord(digit) + 0xFEE0) if digit.isdigit() else digit for digit in str(IPv4Address(n))),
    lambda n: str(IPv4Address(n)).replace(".", "\u3002"),
    lambda n: f"user@{IPv4Address(n)}",
    lambda n: f"api.openai.com@{IPv4Address(n)}",
    lambda n: f"api.openai.com\\@{IPv4Address(n)}",
    lambda n: f"{IPv4Address(n)}\t",
    lambda n: str(IPv4Address(n)).replace(".", "%2e"),
]
"""Ways to write an IPv4 address, of which some parser of addresses takes each."""


def within(networks: list[IPv4Network] | list[IPv6Network]) -> st.SearchStrategy[int]:
    return st.sampled_from(networks).flatmap(lambda net: st.integers(int(net[0]), int(net[-1])))


@given(
    within([IPv4Network(text) for text in PRIVATE]),
    st.sampled_from(SPELLED),
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(["", ":80", ":8443"]),
    st.sampled_from(["", "/", "/v1"]),
)
def test_no_spelling_of_a_private_address_is_public(
    number: int, spelled: Callable[[int], str], scheme: str, port: str, path: str
) -> None:
    with pytest.raises(ConfigError):
        check_url(f"{scheme}://{spelled(number)}{port}{path}", field="base_url", public_only=True)


@given(within([IPv6Network(text) for text in PRIVATE_6]), st.booleans())
def test_no_private_address_of_ipv6_is_public(number: int, exploded: bool) -> None:
    address = IPv6Address(number)
    with pytest.raises(ConfigError):
        check_url(f"http://[{address.exploded if exploded else address}]/", field="f", public_only=True)


@given(st.integers(0, 2**32 - 1))
def test_an_address_of_the_internet_is_taken_in_its_usual_form_alone(number: int) -> None:
    address = IPv4Address(number)
    taken = True
    try:
        check_url(f"http://{address}/", field="f", public_only=True)
    except PrivateAddressError:
        taken = False
    assert taken <= (address.is_global and not address.is_multicast)
    assert taken or not address.is_global or address.is_multicast or address.is_reserved


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost.", "a.localhost", "ip6-localhost", "kubernetes", "metadata.google.internal"),
        *("db.svc", "x.cluster.local", "printer.lan", "1.0.0.127.in-addr.arpa"),
    ],
)
def test_names_of_a_machine_and_its_networks_are_refused_with_what_would_allow_them(host: str) -> None:
    with pytest.raises(PrivateAddressError) as refused:
        check_url(f"http://{host}:8000/v1", field="base_url", public_only=True)
    assert refused.value.field == "base_url"
    assert "--allow-url" in str(refused.value.fix)


def test_the_owner_names_any_host_and_the_configuration_allows_some_to_others() -> None:
    for url in ("http://127.0.0.1:8000/v1", "http://[::1]:8000", "http://judge"):
        check_url(url, field="f", public_only=False)
    check_url("http://127.0.0.1:8000/v1", field="f", public_only=True, allowed=["127.0.0.1"])
    check_url("http://127.0.0.1:8000/v1", field="f", public_only=True, allowed=["127.0.0.1:8000"])
    check_url("http://[::1]:8000/v1", field="f", public_only=True, allowed=["[::1]:8000"])
    check_url("http://Judge:80/v1", field="f", public_only=True, allowed=["judge"])
    with pytest.raises(PrivateAddressError):
        check_url("http://127.0.0.1:8001/v1", field="f", public_only=True, allowed=["127.0.0.1:8000"])
    with pytest.raises(PrivateAddressError):
        check_url("http://127.0.0.2/", field="f", public_only=True, allowed=["127.0.0.1"])


@pytest.mark.parametrize(
    "text",
    [
        *("", "judge", "ftp://judge/", "file:///etc/passwd", "http://", "http:/x", "http://x:0", "http://x:65536"),
        *("http://x:port", "http://[::1", "http://u:hidden@x/", "http://x/?key=hidden", "http://x/#hidden"),
        *("http://x\n/", "http://x y/", "http://\x00x", "http://-x/", "http://x..y/", "http://[fe80::1%25lo]/"),
    ],
)
@pytest.mark.parametrize("public_only", [True, False])
def test_what_is_no_address_is_refused_to_everybody_and_not_repeated(text: str, public_only: bool) -> None:
    with pytest.raises(ConfigError) as refused:
        check_url(text, field="f", public_only=public_only)
    assert "hidden" not in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_refusal(text: str) -> None:
    for url in (text, f"http://{text}", f"https://x{text}/"):
        try:
            found = web_address(url, field="f")
        except ConfigError:
            continue
        assert found.host == found.host.lower()
        assert 0 < found.port < 65536


def test_addresses_of_other_workers_have_one_form_too() -> None:
    assert host_and_port("10.0.0.2:4000", field="f") == ("10.0.0.2", 4000)
    assert host_and_port("[::1]:4000", field="f") == ("::1", 4000)
    for text in ("10.0.0.2", ":4000", "x:0", "x:70000", "x:+1", "x:1 ", "a b:1", "[::1:1", "x\n:1", "0x7f.1:1"):
        with pytest.raises(ConfigError):
            host_and_port(text, field="f")
