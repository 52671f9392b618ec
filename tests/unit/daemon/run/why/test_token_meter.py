"""Tokens drawn before the first rollout ends, at which rate, and how long the longest answers take."""

from __future__ import annotations

from uuid import UUID

from synthetic.worlds.desk import REPEAT, Desk, lease_of

from rftd.daemon.run.why.run_snapshot import RunSnapshot
from rftd.daemon.run.why.token_meter import TokenMeter, work_of
from rftd.daemon.run.why.under_way import WorkUnderWay, work_words
from rftd.streams.events.worker import Heartbeat
from rftd.streams.log.group_id import group_id
from rftd.workers.control.liveness import Liveness


class Heard:
    """An experiment whose explorer reports tokens."""

    def __init__(self) -> None:
        self.desk, self.liveness, self.meter = Desk(), Liveness(), TokenMeter()
        self.explorer = self.desk.join(capacity=64)
        self.work: WorkUnderWay | None = None

    def beat(self, now_s: float, tokens: int, *, worker: UUID | None = None, running: int = REPEAT) -> WorkUnderWay:
        beat = Heartbeat(
            worker=worker or self.explorer,
            role="explorer",
            slot=0,
            state="busy",
            free=64 - running,
            tokens_total=tokens,
        )
        self.liveness.note(beat)
        self.liveness.tick(now_s)
        return self.read(now_s)

    def read(self, now_s: float) -> WorkUnderWay:
        snapshot = RunSnapshot(
            state=self.desk.state, liveness=self.liveness, now_s=now_s, now_ns=self.desk.recorder.clock.now_ns()
        )
        self.meter.note(snapshot)
        work = work_of(snapshot, self.meter)
        assert work is not None
        return work


def test_tokens_and_rate_are_told_before_the_first_rollout_ends() -> None:
    heard = Heard()
    heard.desk.lease(0, heard.explorer)
    assert heard.beat(0.0, 0).tokens_per_s is None
    work = heard.beat(10.0, 440)
    assert (work.ended, work.total, work.tokens, work.tokens_per_s) == (0, REPEAT, 440, 44.0)
    longest_s = 48 * REPEAT / 44.0
    assert work.longest_s is not None
    assert 0 < work.longest_s <= longest_s
    assert work_words(work).startswith("0 of 4 rollouts; 440 tokens at 44/s; the longest rollouts need about ")


def test_tokens_count_anew_from_each_end() -> None:
    heard = Heard()
    lease = heard.desk.lease(0, heard.explorer)
    heard.beat(0.0, 0)
    heard.beat(10.0, 440)
    heard.desk.produce(lease, [0])
    work = heard.beat(11.0, 480)
    assert (work.ended, work.tokens) == (1, 0)
    assert work_words(work).startswith("1 of 4 rollouts; 44 tokens/s")
    assert heard.beat(12.0, 520).tokens == 40


def test_a_restarted_explorer_counts_from_zero_and_nothing_is_lost() -> None:
    heard = Heard()
    heard.desk.lease(0, heard.explorer)
    heard.beat(0.0, 0)
    heard.beat(10.0, 440)
    successor = heard.desk.join(slot=1)
    assert heard.beat(12.0, 100, worker=successor).tokens == 540


def test_a_daemon_that_comes_late_counts_no_tokens_of_ended_rollouts() -> None:
    heard = Heard()
    lease = heard.desk.lease(0, heard.explorer)
    heard.desk.produce(lease, [0])
    assert heard.beat(0.0, 5000).tokens == 0


def test_without_work_nothing_is_under_way() -> None:
    heard = Heard()
    snapshot = RunSnapshot(state=heard.desk.state, liveness=heard.liveness, now_s=1.0, now_ns=1)
    assert work_of(snapshot, heard.meter) is None
    assert lease_of(group_id(heard.desk.id, 0, 0)).repeat_times == REPEAT


def test_the_words_are_those_of_a_first_evaluation() -> None:
    work = WorkUnderWay(kind="rows", ended=0, total=64, tokens=5100, tokens_per_s=44.2, longest_s=361.0)
    assert work_words(work) == "0 of 64 rows; 5,100 tokens at 44/s; the longest rows need about 6 min 1 s"
