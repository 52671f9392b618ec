"""A service that somebody else than the owner named: where it may be, and which keys it is sent."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest

from rftd.ops.clock import ManualClock
from rftd.ops.errors import ConfigError, RolloutError
from rftd.ops.outbound_transport import PublicTransport
from rftd.streams.spec.engines import AuxiliarySpec, ReachSpec
from rftd.workers.datasets.message import Message
from rftd.workers.engines.tinker.access import Access
from rftd.workers.generation.auxiliary.retries import Retries
from rftd.workers.generation.auxiliary.service import ModelService, service_address
from rftd.workers.generation.auxiliary.service_arguments import ServiceArgs

KEY = "sk-very-secret"
NOTHING = ReachSpec(restricted=True)
OTHERS = ReachSpec(restricted=True, secrets={"JUDGE_KEY": ("judge.example.com",), "JUDGE_URL": ("10.0.0.7:8000",)})


def judge(base_url: str = "https://judge.example.com/v1", **fields: str) -> AuxiliarySpec:
    return AuxiliarySpec(name="judge", engine="external", model_name="m", base_url=base_url, **fields)  # type: ignore[arg-type]


def refusal(spec: AuxiliarySpec, environ: dict[str, str], reach: ReachSpec) -> str:
    with pytest.raises(ConfigError) as refused:
        service_address(spec, environ, reach=reach)
    assert KEY not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://listener.example.org/v1",
        "https://judge.example.com.listener.org/v1",
        "https://1.1.1.1/v1",
        "http://judge.example.com/v1",  # in the clear
    ],
)
def test_a_key_is_sent_to_the_hosts_alone_that_were_granted(url: str) -> None:
    environ = {"JUDGE_KEY": KEY}
    assert service_address(judge(api_key_env="JUDGE_KEY"), environ, reach=OTHERS).api_key == KEY
    refusal(judge(url, api_key_env="JUDGE_KEY"), environ, OTHERS)


def test_a_key_is_sent_in_the_clear_where_the_owner_allows_the_address() -> None:
    allowed = msgspec.structs.replace(OTHERS, addresses=("judge.example.com:80",))
    spec = judge("http://judge.example.com/v1", api_key_env="JUDGE_KEY")
    assert service_address(spec, {"JUDGE_KEY": KEY}, reach=allowed).api_key == KEY


@pytest.mark.parametrize("field", ["api_key_env", "base_url_env"])
def test_nobody_learns_by_an_error_which_variables_are_set(field: str) -> None:
    spec = judge(**{field: "SOME_NAME"})
    granted = ReachSpec(restricted=True, secrets={"SOME_NAME": ("judge.example.com",)})
    said = {
        refusal(spec, {"SOME_NAME": KEY}, NOTHING),
        refusal(spec, {}, NOTHING),
        refusal(spec, {}, granted),
    }
    if field == "base_url_env":
        said.add(refusal(spec, {"SOME_NAME": KEY}, granted))
    assert len(said) == 1


def test_an_address_in_a_variable_is_the_owners_who_granted_it() -> None:
    spec = judge("", base_url_env="JUDGE_URL")
    environ = {"JUDGE_URL": "http://10.0.0.7:8000/v1"}
    assert service_address(spec, environ, reach=OTHERS).base_url == "http://10.0.0.7:8000/v1"
    refusal(spec, {"JUDGE_URL": "http://10.0.0.8:8000/v1"}, OTHERS)


@pytest.mark.parametrize("url", ["http://127.0.0.1:7070/v1", "http://169.254.169.254/latest", "http://judge:80/v1"])
def test_others_reach_no_private_address_and_the_owner_does(url: str) -> None:
    refusal(judge(url), {}, OTHERS)
    assert service_address(judge(url), {}).base_url == url


@pytest.mark.anyio
async def test_a_name_that_leads_to_this_machine_is_refused_where_the_connection_is_made() -> None:
    """What an address says is not where it leads: a name may be anybody's for 127.0.0.1, or become it."""
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readline())
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    spec = judge(f"http://rebound.example.com:{server.sockets[0].getsockname()[1]}/v1")
    service = ModelService(
        spec, ServiceArgs(), service_address(spec, {}, reach=NOTHING), clock=ManualClock(), reach=NOTHING
    )
    transport = service._client._transport
    assert isinstance(transport, PublicTransport)

    async def leads_here(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    transport._resolve = leads_here
    async with server:
        with pytest.raises(RolloutError, match="no address that this experiment may reach"):
            await service.chat([Message("user", "2+2?")], None, Retries(0, 1.0, Random(1)))
    await service.close()
    assert heard == []


def test_the_key_of_tinker_goes_to_its_own_address_or_to_a_granted_one() -> None:
    environ = {"TINKER_API_KEY": KEY}
    granted = ReachSpec(restricted=True, secrets={"TINKER_API_KEY": ("tinker.example.com",)})
    assert Access.of("https://listener.example.org", environ).key.reveal() == KEY, "an owner's experiment"
    assert Access.of("", environ, granted).key.reveal() == KEY
    assert Access.of("https://tinker.example.com/api", environ, granted).key.reveal() == KEY
    rebound = environ | {"TINKER_BASE_URL": "https://listener.example.org"}
    for base_url, given, reach in (
        ("https://listener.example.org", environ, granted),
        ("http://127.0.0.1:1", environ, granted),
        ("", rebound, granted),
        ("", environ, NOTHING),
    ):
        with pytest.raises(ConfigError) as refused:
            Access.of(base_url, given, reach)
        assert KEY not in str(refused.value)
