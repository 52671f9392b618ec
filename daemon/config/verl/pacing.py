"""Rules for the pace: rftd's steps per step of veRL, and the run-ahead of veRL's asynchronous programs."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from rftd.daemon.config.verl.draft import ExperimentDraft

Program: TypeAlias = Literal["synchronous", "one_step_off", "fully_async"]
"""veRL's programs: synchronous, one step off, or fully asynchronous."""

_ROLLOUT: Final = "actor_rollout_ref.rollout"
"""Section of the rollout engine in veRL's configuration."""
_MINI: Final = "actor_rollout_ref.actor.ppo_mini_batch_size"
"""Key for the tasks of a mini-batch."""
_BATCH: Final = "data.train_batch_size"
"""Key for the tasks of a batch."""
_N: Final = f"{_ROLLOUT}.n"
"""Key for the answers of a task."""
_AGENTS: Final = f"{_ROLLOUT}.n_agent"
"""Key for the agents of a task, each with as many answers as `_N` sets."""
_ASYNC: Final = "async_training"
"""Section of the asynchronous programs."""
_WINDOW: Final = f"{_ASYNC}.trigger_parameter_sync_step"
"""Key for the steps between two synchronisations."""
_UPDATE: Final = f"{_ASYNC}.require_batches"
"""Key for the mini-batches of an update."""
_STALE: Final = f"{_ASYNC}.staleness_threshold"
"""Key for the threshold of staleness."""
_PARTIAL: Final = f"{_ASYNC}.partial_rollout"
"""Key for rollouts that continue across a synchronisation."""
_APART: Final = "rollout.n_gpus_per_node"
"""Key for the GPUs of separate explorers."""
_BYPASS: Final = "algorithm.rollout_correction.bypass_mode"
"""Key for the bypass mode."""
_OLDER: Final = {f"{_ASYNC}.use_rollout_log_probs": True, f"{_ASYNC}.compute_prox_log_prob": False}
"""Keys selecting the bypass mode in older releases, with the selecting value of each."""
_TIMEOUT_S: Final = 1200
"""Time-out for weights as in the guide's examples; veRL has no time-out."""


class VerlPace(NamedTuple):
    """Numbers converting veRL's steps to rftd's: a step of rftd is one mini-batch of veRL."""

    program: Program
    """veRL's program."""
    mini: int
    """Tasks per step."""
    answers: int
    """Answers per task."""
    of_answers: tuple[str, ...]
    """The keys setting the number of answers."""
    update: int
    """rftd's steps per update of veRL, the unit of warm-ups."""
    interval: int
    """rftd's steps between two synchronisations, the unit of checkpoints and evaluations."""
    from_rollouts: bool
    """True if the old log-probabilities are the rollouts', veRL's bypass mode."""


def program_of(draft: ExperimentDraft) -> Program:
    """Returns veRL's program, by name or by keys exclusive to the program."""
    program = draft.settings.program
    if "fully_async" in program or (not program and draft.given(_STALE)):
        return "fully_async"
    if "one_step_off" in program or (not program and draft.given(_APART)):
        return "one_step_off"
    return "synchronous"


def pace_of(draft: ExperimentDraft) -> VerlPace:
    """Returns the pace of a run; 1 for each number, after adding an issue, if a batch is not a multiple of its
    mini-batches.
    """
    names = tuple(name for name in (_N, _AGENTS) if name == _N or draft.given(name))
    answers = draft.number(_N) * (draft.number(_AGENTS) if draft.given(_AGENTS) else 1)
    program = program_of(draft)
    if draft.given(_BYPASS):
        from_rollouts = draft.flag(_BYPASS)
    else:
        older = all(draft.flag(name) is expected for name, expected in _OLDER.items() if draft.given(name))
        from_rollouts = program != "synchronous" and older
    if program == "fully_async":
        update = draft.number(_UPDATE)
        interval = update * draft.number(_WINDOW)
        return VerlPace(program, draft.number(_MINI), answers, names, update, interval, from_rollouts)
    mini = _mini(draft)
    interval = _interval(draft, mini)
    return VerlPace(program, mini, answers, names, interval, interval, from_rollouts)


def _mini(draft: ExperimentDraft) -> int:
    """Returns the tasks of a mini-batch: a batch smaller than a mini-batch is not divided."""
    batch = draft.number(_BATCH)
    mini = draft.number(_MINI)
    return batch if 0 < batch < mini else mini


def _interval(draft: ExperimentDraft, mini: int) -> int:
    """Returns the number of mini-batches in one batch of veRL."""
    batch = draft.number(_BATCH)
    if batch > 0 and batch % mini == 0:
        return batch // mini
    problem = f"{_BATCH} is {batch}, which is not a multiple of {_MINI}, {mini}"
    draft.contradict(
        _MINI if draft.given(_MINI) else _BATCH, problem, f"make it one, such as {max(1, batch // mini) * mini}"
    )
    return 1


def put_pace(draft: ExperimentDraft, pace: VerlPace, sync_offset: int) -> None:
    """Sets the fields of batches, of the synchronizer and of the policy."""
    mini = pace.mini
    whole = mini != draft.number(_MINI)
    draft.put(
        "buffer.batch_size", mini, *((_BATCH, _MINI) if whole else (_MINI,)), note="a batch whole" if whole else ""
    )
    draft.put("buffer.train_batch_size", mini * pace.answers, _MINI, *pace.of_answers, note=f"{mini} * {pace.answers}")
    steps = "trainer.total_training_steps"
    if draft.given(steps):
        note = f"times {pace.update}: a step here is one mini-batch" if pace.update > 1 else ""
        draft.put("buffer.total_steps", draft.number(steps) * pace.update, steps, note=note)
    draft.put("synchronizer.sync_timeout", _TIMEOUT_S, note="seconds; veRL has no such wait")
    if pace.program == "fully_async":
        _put_window(draft, pace)
        return
    one_off = pace.interval if pace.program == "one_step_off" else 0
    offset = max(sync_offset, one_off)
    ahead = "explorers are a step ahead" if offset else "as veRL, on policy"
    draft.put("synchronizer.sync_style", "fixed", note="all rollouts of a batch are drawn before it is trained")
    draft.put("synchronizer.sync_offset", offset, note="explorers are a batch of veRL's ahead" if one_off else ahead)
    draft.put("synchronizer.sync_interval", pace.interval, _BATCH, _MINI, note="the one by the other")
    if one_off:
        _put_old_logprobs(draft, pace)
    for name in draft.settings.given:
        if name.startswith(f"{_ASYNC}."):
            draft.ask(name, "the program is none of veRL's asynchronous ones: choose synchronizer.sync_style")


def _put_window(draft: ExperimentDraft, pace: VerlPace) -> None:
    """Converts veRL's fully asynchronous window: synchronous at threshold 0, otherwise paced by the policy
    `verl_window`.
    """
    stale = draft.value(_STALE)
    style = "fully_async"
    note = "rollouts continue while their weights change"
    if not stale:
        style = "fixed"
        note = "all rollouts of a window are drawn by the same weights"
    elif not draft.flag(_PARTIAL):
        style = "trainer_driven"
        note = "rollouts under way end before weights change"
    draft.put("synchronizer.sync_style", style, _STALE, _PARTIAL, note=note)
    draft.put("synchronizer.sync_offset", 0, note="the policy determines how far explorers run ahead")
    draft.put("synchronizer.sync_interval", pace.interval, _WINDOW, _UPDATE, note="mini-batches between two weights")
    if stale:
        draft.put("policy.kind", "verl_window", note="veRL's window")
        draft.put("policy.staleness_threshold", stale, _STALE)
    draft.drop(_BATCH, "a fully asynchronous run leases tasks one by one")
    draft.drop("data.gen_batch_size", "explorers lease tasks one by one")
    total = "rollout.total_rollout_steps"
    steps = max(1, draft.number(total) // pace.mini)
    draft.put("buffer.total_steps", steps, total, _MINI, note="the one by the other")
    _put_old_logprobs(draft, pace)


def _put_old_logprobs(draft: ExperimentDraft, pace: VerlPace) -> None:
    """Sets the old log-probabilities to the rollouts', the programs' default, unless set in the script."""
    if draft.given(_BYPASS):
        return
    names = [name for name in _OLDER if draft.given(name)]
    draft.put(_BYPASS, pace.from_rollouts, *names, note="" if names else "this program's own")
    draft.drop("actor_rollout_ref.actor.use_rollout_log_probs", f"see {_BYPASS}")
