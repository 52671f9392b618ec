"""An engine of several processes keeps the contract of one, and its processes are lost together, with the reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
from synthetic.until import poll

from rftd.ops.errors import DataError, RankError
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.engines.contract.trainer import CHECKS, TrainerBench, make_batch, trained
from rftd.workers.engines.ranks.child import RemoteRank
from rftd.workers.engines.ranks.controller import RankedEngine, RankPlan
from rftd.workers.engines.ranks.host import RankHost
from rftd.workers.engines.ranks.messages import SampleBytes
from rftd.workers.engines.ranks.nodes import RANK_NODES, RankHostPlace, RankNodes
from rftd.workers.engines.ranks.sight import facts_of_rank, require_same_facts
from rftd.workers.learning.engine import TrainSample
from rftd.workers.learning.engine_registry import make_engine


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Any]:
    made: list[TrainerBench] = []

    def bench(**arguments: Any) -> TrainerBench:
        # The fake engine reads no model.
        made.append(TrainerBench("fake", tmp_path / f"bench-{len(made)}", arguments=arguments, model=tmp_path))
        made[-1].folder.mkdir()
        return made[-1]

    yield bench
    for each in made:
        each.close()


def opened(bench: TrainerBench) -> RankedEngine:
    engine = bench.opened(bench.stage())
    assert isinstance(engine, RankedEngine)
    engine.begin_stage(bench.stage())
    return engine


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_contract_of_any_engine(ranks: int, benches: Any) -> None:
    bench = benches(ranks=ranks)
    for check in CHECKS:
        check(bench)
        bench.close()


@pytest.mark.slow
def test_ranks_do_as_one_process_does(benches: Any) -> None:
    """Weights, digests and snapshot are those of the plain engine, and so are its errors, after which it goes on."""
    alone = benches()
    bench = benches(ranks=2)
    plain = alone.opened(alone.stage())
    engine = bench.opened(bench.stage())
    assert trained(engine, bench.stage(), range(1, 4)) == trained(plain, alone.stage(), range(1, 4))
    assert engine.sha256() == plain.sha256()
    assert engine.deterministic
    assert engine.environment() == plain.environment() | {"ranks": "2"}
    with pytest.raises(DataError, match="no checkpoint of the fake engine"):
        engine.load(bench.new_folder(), bench.stage())
    snapshot = engine.snapshot()
    assert engine.train(make_batch(4)) == plain.train(make_batch(4))
    before = snapshot.weights()["digest"]
    assert before.dtype == "uint8"
    assert bytes(before.data) != bytes(engine.snapshot().weights()["digest"].data)
    engine.close()
    assert not any(psutil.pid_exists(pid) for pid in engine.pids())  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_rank_that_is_killed_in_a_step_ends_all(benches: Any) -> None:
    engine = opened(benches(ranks=2, step_s=60.0))
    pids = engine.pids()
    threading.Timer(0.3, os.kill, (pids[1], signal.SIGKILL)).start()
    with pytest.raises(RankError, match=rf"rank 1 of 2 \(pid {pids[1]}\) was ended by SIGKILL") as lost:
        engine.train(make_batch(1))
    assert "the trainer restarts" in str(lost.value)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RankError, match="rank 1 of 2"):
        engine.checksum()


@pytest.mark.slow
def test_a_rank_that_ends_while_nobody_asks_is_told_to_who_watches(benches: Any) -> None:
    engine = opened(benches(ranks=2))
    threading.Timer(0.2, os.kill, (engine.pids()[0], signal.SIGKILL)).start()
    with pytest.raises(RankError, match=r"rank 0 of 2 .* was ended by SIGKILL"):
        engine.watch()
    quiet = opened(benches(ranks=1))
    threading.Timer(0.2, quiet.close).start()
    quiet.watch()


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_its_method_and_where_it_was(benches: Any) -> None:
    engine = opened(benches(ranks=2, rank_timeout_s=4.0))
    pids = engine.pids()
    os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(RankError, match=rf"^[^;]*rank 1 of 2 \(pid {pids[1]}\), stopped: no answer to train within 4"):
        engine.train(make_batch(1))
    assert not any(psutil.pid_exists(pid) for pid in pids)
    stuck = opened(benches(ranks=1, rank_timeout_s=4.0, step_s=60.0))
    with pytest.raises(RankError, match=r"no answer to train within 4 s[\s\S]*engines/fake/trainer\.py.* in train"):
        stuck.train(make_batch(1))


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankHost]:
    """The launcher has given the trainer a second node, which is this machine again."""
    host = RankHost("127.0.0.1")
    nodes = RankNodes(hosts=(RankHostPlace(address="127.0.0.1", port=host.port, key=host.key),))
    monkeypatch.setenv(RANK_NODES, msgspec.json.encode(nodes).decode())
    yield host
    host.close()


@pytest.mark.slow
def test_the_contract_of_any_engine_whose_ranks_are_on_two_nodes(two_nodes: RankHost, benches: Any) -> None:
    bench = benches(ranks=2)
    for check in CHECKS:
        check(bench)
        bench.close()


@pytest.mark.slow
def test_the_end_of_a_rank_on_another_node_is_news_while_its_connection_is_open(two_nodes: RankHost) -> None:
    node = RankHostPlace(address="127.0.0.1", port=two_nodes.port, key=two_nodes.key)
    child = RemoteRank(1, 2, node, crew="crew", timeout_s=60.0)
    child.send_signal(signal.SIGKILL)
    assert child.wait(60.0)
    assert child.ended() == "was ended by SIGKILL, perhaps because the machine ran out of memory"
    child.close()


@pytest.mark.slow
def test_a_rank_of_another_node_is_lost_with_its_reason_and_its_last_lines(two_nodes: RankHost, benches: Any) -> None:
    engine = opened(benches(ranks=4, step_s=60.0))
    pids = engine.pids()
    threading.Timer(0.3, os.kill, (pids[3], signal.SIGKILL)).start()
    where = rf"rank 3 of 4 \(pid {pids[3]} on 127\.0\.0\.1\)"
    with pytest.raises(RankError, match=rf"{where} was ended by SIGKILL"):
        engine.train(make_batch(1))
    assert not any(psutil.pid_exists(pid) for pid in pids)
    hung = opened(benches(ranks=2, rank_timeout_s=4.0, step_s=60.0))
    with pytest.raises(RankError, match=r"rank 1 of 2 \(pid \d+ on 127\.0\.0\.1\)[\s\S]*fake/trainer\.py.* in train"):
        hung.train(make_batch(1))
    assert not any(psutil.pid_exists(pid) for pid in hung.pids())


def ranks_here() -> list[psutil.Process]:
    """The processes of ranks that this one started; a server of other tests may run beside them."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "rftd.workers.engines.ranks.rank_process" in _command_line(child)]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_node_that_is_gone_or_takes_another_key_is_named(two_nodes: RankHost, benches: Any, monkeypatch: Any) -> None:
    stranger = RankNodes(hosts=(RankHostPlace(address="127.0.0.1", port=two_nodes.port, key="0" * 64),))
    monkeypatch.setenv(RANK_NODES, msgspec.json.encode(stranger).decode())
    with pytest.raises(RankError, match=r"rank 1 of 2 cannot be started on the node 127\.0\.0\.1"):
        opened(benches(ranks=2))
    with pytest.raises(RankError, match="3 ranks cannot be spread evenly over 2 nodes"):
        opened(benches(ranks=3))
    two_nodes.close()
    with pytest.raises(RankError, match=r"rank 1 of 2 cannot be started .*refused"):
        opened(benches(ranks=2))
    assert not ranks_here()


SCRIPT = """
import sys
from pathlib import Path
from rftd.workers.engines.contract.trainer import TrainerBench, make_batch
folder = Path(sys.argv[1])
bench = TrainerBench("fake", folder, arguments={"ranks": 2, "step_s": 600.0}, model=folder)
engine = bench.opened(bench.stage())
engine.begin_stage(bench.stage())
print(*engine.pids(), flush=True)
engine.train(make_batch(1))
"""


@pytest.mark.slow
def test_ranks_end_with_their_trainer_process_however_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        pids = [int(each) for each in trainer.stdout.readline().split()]
        assert len(pids) == 2
        trainer.kill()
    poll(lambda: not any(_lives(pid) for pid in pids), 30.0)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


OTHERS = '''
from rftd.workers.engines.fake.trainer import FakeTrainerEngine

class Other(FakeTrainerEngine):
    """Of rank 1 one method does something else."""

    def __init__(self, place):
        super().__init__(rank=place.rank)
        self._other = place.rank == 1

    def environment(self):
        return {"engine": "other" if self._other else "fake"}

class Drifting(FakeTrainerEngine):
    def sha256(self):
        return f"{self._rank}" * 64

    def train(self, batch):
        if self._rank == 1:
            raise ValueError("no such token")
        return super().train(batch)

def drifting(place):
    return Drifting(rank=place.rank)
'''


@pytest.mark.slow
def test_ranks_that_differ_are_named(benches: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other_ranks.py").write_text(OTHERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    stage = benches().stage()
    experiment = ExperimentSpec(project="p", name="n", job_dir=str(tmp_path), stages=(stage,), config={})

    def engine(maker: str) -> RankedEngine:
        return RankedEngine(
            RankPlan(maker=f"other_ranks:{maker}", ranks=2, trainer=stage.trainer, threads=1, backend="")
        )

    other = engine("Other")
    with pytest.raises(RankError, match="different environments: engine is fake on rank 0, and other on rank 1"):
        other.open(experiment, "")
    drifting = engine("drifting")
    drifting.open(experiment, "")
    drifting.begin_stage(stage)
    assert drifting.checksum()
    with pytest.raises(RankError, match="rank 1 of 2 failed alone in train"):
        drifting.train(make_batch(1))
    again = engine("drifting")
    again.open(msgspec.structs.replace(experiment, seed=7), "")
    with pytest.raises(RankError, match=r"ranks 0 and 1 of 2 differ in checksum: 0000.* on rank 0, 1111.* on rank 1"):
        again.sha256()


@pytest.mark.slow
def test_ranks_that_see_another_folder_under_the_jobs_path_are_named(benches: Any, tmp_path: Path) -> None:
    """Nothing is opened: what they save would be lost with their node."""
    stage = benches(ranks=2).stage()
    engine = make_engine(stage.trainer)
    assert isinstance(engine, RankedEngine)
    (tmp_path / "job").mkdir()
    # A path that leads each process elsewhere, as that of a local disk does on each node.
    folder = os.open(tmp_path / "job", os.O_RDONLY)
    own = f"/proc/self/fd/{folder}"
    try:
        with pytest.raises(RankError, match=r"rank 0, 1 of 2 sees another folder under the job's path") as raised:
            engine.open(ExperimentSpec(project="p", name="n", job_dir=own, stages=(stage,), config={}), "")
    finally:
        os.close(folder)
    assert raised.value.field == "checkpoint_root_dir"
    assert not list((tmp_path / "job").iterdir())
    assert not any(psutil.pid_exists(pid) for pid in engine.pids())


def test_what_ranks_see_is_compared(tmp_path: Path, benches: Any) -> None:
    experiment = ExperimentSpec(project="p", name="n", job_dir="", stages=(benches().stage(),), config={})
    for name, text in (("one", "{}"), ("two", "{ }")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    one = facts_of_rank(experiment, str(tmp_path / "one"))
    assert {"rftd", "torch", "python"} <= one.keys()
    require_same_facts([one, one])
    with pytest.raises(RankError, match=r"file config\.json of the model is 2 bytes, .*, and 3 bytes, .* on rank 1"):
        require_same_facts([one, facts_of_rank(experiment, str(tmp_path / "two"))])
    with pytest.raises(RankError, match=r"torch is .* on rank 0, and 1\.0 on rank 2"):
        require_same_facts([one, one, one | {"torch": "1.0"}])


def test_a_sample_travels_as_it_is() -> None:
    assert SampleBytes.__struct_fields__ == TrainSample.__struct_fields__
    sample = make_batch(1).samples[0]
    again = SampleBytes.of(sample).sample()
    for name in TrainSample.__struct_fields__:
        found = getattr(again, name)
        wanted = getattr(sample, name)
        if isinstance(wanted, np.ndarray):
            assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
