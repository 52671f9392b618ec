"""What tells a log on a cluster from every other one, wherever the processes run that ask."""

from __future__ import annotations

import pytest

from rftd.daemon.serve.log_source import connect_log, identity_at
from rftd.daemon.stack.kafka import KafkaBroker
from rftd.ops.clock import SystemClock
from rftd.ops.ids import SystemIds
from rftd.streams.log.backend import backend_of, log_url

pytestmark = pytest.mark.anyio


async def test_a_log_is_told_from_others_by_its_cluster_and_prefix(
    kafka_broker: KafkaBroker, kafka_prefix: str
) -> None:
    clock = SystemClock()
    one, other = (log_url(f"kafka://{kafka_broker.bootstrap}/?prefix={prefix}") for prefix in (kafka_prefix, "other."))
    log = await connect_log(one, clock=clock, ids=SystemIds(clock))
    await log.close()
    own = await identity_at(backend_of(one).checked(one.text))
    assert own is not None
    assert own == await identity_at(backend_of(one).checked(one.text))
    assert own.owns(own)
    elsewhere = await identity_at(backend_of(other).checked(other.text))
    assert elsewhere is not None
    assert not own.owns(elsewhere)
