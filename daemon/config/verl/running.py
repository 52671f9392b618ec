"""Rules for names, data, evaluations and the monitor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from rftd.daemon.config.verl.draft import ExperimentDraft
from rftd.daemon.config.verl.gpus import put_gpus
from rftd.daemon.config.verl.optimizer import times
from rftd.daemon.config.verl.pacing import VerlPace, put_pace

_ROLLOUT: Final = "actor_rollout_ref.rollout"
"""Section of the rollout engine in veRL's configuration."""
_INPUT: Final = "buffer.explorer_input"
"""Section of the tasks in the experiment file."""
_SPLITS: Final = ("train", "test", "val", "validation")
"""File names that are splits of a dataset."""
_TRACKERS: Final[Mapping[str, str]] = {
    **{word: word for word in ("wandb", "tensorboard", "mlflow", "swanlab", "trackio")},
    "file": "jsonl",
}
"""rftd's tracker for each logger of veRL."""
_CONSOLE: Final = "console"
"""veRL's logger on the terminal."""
_MOST_FILES: Final = 100
"""Maximum number of files of a dataset."""
_MANAGERS: Final = ("naive", "dapo", "prime")
"""veRL's reward managers passing each answer to a reward function; dapo's length penalty is a separate key."""


def put_running(draft: ExperimentDraft, pace: VerlPace, *, sync_offset: int) -> None:
    """Sets all fields outside `algorithm` and `trainer`: names, model, pace, tasksets, evaluations, GPUs, monitor."""
    _put_names(draft)
    epochs = "rollout.total_epochs"
    for name, target in (
        ("actor_rollout_ref.model.path", "model.model_path"),
        ("data.max_prompt_length", "model.max_prompt_tokens"),
        ("data.max_response_length", "model.max_response_tokens"),
        (epochs if draft.given(epochs) else "trainer.total_epochs", "buffer.total_epochs"),
    ):
        draft.put(target, draft.value(name), name)
    put_pace(draft, pace, sync_offset)
    _put_tasksets(draft)
    _put_evaluations(draft, pace)
    put_gpus(draft, pace.program)
    _put_monitor(draft)


def _put_names(draft: ExperimentDraft) -> None:
    """Sets project, name and folder of the experiment."""
    for name, target in (("trainer.project_name", "project"), ("trainer.experiment_name", "name")):
        draft.put(target, str(draft.value(name)), name)
    below = f"{draft.value('trainer.project_name')}/{draft.value('trainer.experiment_name')}"
    folder = draft.given("trainer.default_local_dir")
    if folder is None:
        draft.put("checkpoint_root_dir", "./checkpoints", note="veRL's default, without project and name")
    else:
        local_dir = str(folder.value).rstrip("/")
        root = local_dir.removesuffix(f"/{below}") if local_dir != below else "."
        note = "" if root != local_dir else "files are in project and name below it"
        draft.put("checkpoint_root_dir", root or "/", "trainer.default_local_dir", note=note)
    mode = "trainer.resume_mode"
    if draft.value(mode) == "resume_path":
        draft.ask(mode, "an experiment continues from its own folder; `rftd fork` starts from a step of another one")
    elif draft.given(mode):
        draft.put("continue_from_checkpoint", draft.value(mode) != "disable", mode)
    draft.ask("trainer.resume_from_path", "an experiment continues from its own folder; see `rftd fork`")
    if draft.flag("trainer.val_only"):
        draft.put("mode", "bench", "trainer.val_only")
    else:
        draft.drop("trainer.val_only", "rftd does the same")


def _files(draft: ExperimentDraft, name: str) -> list[str]:
    """Returns the paths of a key, at most `_MOST_FILES`; more are an issue."""
    setting = draft.value(name)
    files = [str(file) for file in (setting if isinstance(setting, list) else [setting])]
    if len(files) > _MOST_FILES:
        draft.contradict(name, f"names {len(files):,} files, and {_MOST_FILES} are read at most", "join them")
    return files[:_MOST_FILES]


def _put_tasksets(draft: ExperimentDraft) -> None:
    """Adds a taskset per file: for `FOLDER/train.parquet` the folder is the path, and `train` the split."""
    titles: set[str] = set()
    for name, kind in (("data.train_files", "tasksets"), ("data.val_files", "eval_tasksets")):
        if kind == "eval_tasksets" and draft.given(name) is None:
            draft.remark("veRL's default", name, f"is {draft.value(name)}; here nothing is evaluated")
            continue
        for index, file in enumerate(_files(draft, name)):
            field = f"{_INPUT}.{kind}[{index}]"
            path = PurePosixPath(file)
            folder = path.parent.name if "$" not in path.parent.name else ""
            whole = path.suffix == ".parquet" or (path.suffix in (".json", ".jsonl") and path.stem in _SPLITS)
            word = folder if whole and folder else path.stem
            # The name comes from a folder or a file, never from a variable.
            word = word if "$" not in path.name else f"taskset_{index}"
            title = word + ("_eval" if kind == "eval_tasksets" else "")
            while title in titles:
                title += f"_{index}"
            titles.add(title)
            draft.put(f"{field}.name", title)
            draft.put(f"{field}.storage_type", "file")
            draft.put(f"{field}.path", _local(str(path.parent) if whole else file), name, brief=True)
            if whole:
                draft.put(f"{field}.split", path.stem)
            for key, default in (("prompt_key", "prompt"), ("response_key", "answer")):
                setting = draft.given(f"data.{key}")
                column = str(setting.value) if setting else default
                draft.put(
                    f"{field}.format.{key}", column, *([f"data.{key}"] if setting else []), note="look at the rows"
                )
    train = len(_files(draft, "data.train_files"))
    _put_order(draft, train)
    note = "veRL chooses a reward by each row's data_source, here a workflow has it"
    draft.put(f"{_INPUT}.default_workflow_type", "math_workflow", note=note)
    if not draft.given("custom_reward_function.path"):
        draft.remark(
            "needs a person", "data_source", f"({note}: choose default_workflow_type and default_reward_fn_type)"
        )
    for name in ("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name"):
        if draft.value(name) in (None, *_MANAGERS):
            draft.drop(name, "a reward scores each answer, as in rftd")
        else:
            draft.gap(f"{_INPUT}.default_reward_fn_type", name, note="a reward that stands for this manager")


def _local(path: str) -> str:
    """Returns the path in a form never read as a name on a hub, because veRL only reads files."""
    return path if path.startswith(("/", "~", "$", ".")) or "://" in path else f"./{path}"


def _put_order(draft: ExperimentDraft, count: int) -> None:
    """Sets the order, number and sampling of the rows, for each of `count` tasksets."""
    shuffle = "data.shuffle"
    rows = "data.train_max_samples"
    for index in range(count):
        field = f"{_INPUT}.tasksets[{index}]"
        if draft.given(shuffle):
            word = "shuffle" if draft.flag(shuffle) else "sequential"
            draft.put(f"{field}.data_selector.selector_type", word, shuffle)
        draft.put_given(f"{field}.data_selector.seed", "data.seed")
        if draft.given(rows) and draft.number(rows) > 0 and count == 1:
            draft.put(f"{field}.limit_rows", draft.number(rows), rows)
        if draft.flag(f"{_ROLLOUT}.ignore_eos"):
            draft.put(f"{field}.rollout_args.ignore_eos", True, f"{_ROLLOUT}.ignore_eos")
    if not draft.given(shuffle):
        text = "is true; here rows are taken in turn unless data_selector.selector_type is shuffle"
        draft.remark("veRL's default", shuffle, text)
    draft.drop(f"{_ROLLOUT}.ignore_eos", "rftd does the same")
    for name in (rows, "data.val_max_samples"):
        if draft.value(name) in (None, -1):
            draft.drop(name, "rftd does the same")
        else:
            draft.ask(name, "write limit_rows of each taskset")


def _put_evaluations(draft: ExperimentDraft, pace: VerlPace) -> None:
    """Sets the interval of evaluations, and the sampling of held-out tasksets."""
    frequency = "rollout.test_freq" if draft.given("rollout.test_freq") else "trainer.test_freq"
    if draft.given(frequency):
        if draft.number(frequency) > 0:
            every = draft.number(frequency) * pace.interval
            draft.put("explorer.eval_interval", every, frequency, note=times(pace.interval))
        else:
            draft.drop(frequency, "there is an evaluation at the end in any case: leave eval_tasksets out for none")
    prefix = f"{_ROLLOUT}.val_kwargs"
    count = len(_files(draft, "data.val_files")) if draft.given("data.val_files") else 0
    greedy = draft.given(f"{prefix}.do_sample") is not None and not draft.flag(f"{prefix}.do_sample")
    for index in range(count):
        field = f"{_INPUT}.eval_tasksets[{index}]"
        draft.put_given(f"{field}.repeat_times", f"{prefix}.n")
        if greedy:
            draft.put(f"{field}.rollout_args.temperature", 0.0, f"{prefix}.do_sample")
            draft.drop(f"{prefix}.temperature", "do_sample is false")
        else:
            draft.put_given(f"{field}.rollout_args.temperature", f"{prefix}.temperature")
        for key in ("top_p", "top_k"):
            draft.put_given(f"{field}.rollout_args.{key}", f"{prefix}.{key}")
    draft.drop(f"{prefix}.do_sample", "determined by the temperature")
    if count and not greedy and not draft.given(f"{prefix}.temperature"):
        text = "is 0, greedy; here evaluations are drawn as rollouts are unless rollout_args.temperature is written"
        draft.remark("veRL's default", f"{prefix}.temperature", text)
    sampled = f"{_ROLLOUT}.do_sample"
    if draft.flag(sampled):
        draft.drop(sampled, "rftd does the same")
    else:
        draft.ask(sampled, "greedy answers of one group are all the same: nothing is learnt from them")


def _put_monitor(draft: ExperimentDraft) -> None:
    """Sets a tracker per logger except `console`, covered by `rftd watch`."""
    name = "trainer.logger"
    if draft.given(name) is None:
        return
    words = [str(word) for word in _files(draft, name)]
    trackers = list(dict.fromkeys(_TRACKERS[word] for word in words if word in _TRACKERS))
    unsupported = [word for word in words if word not in _TRACKERS and word != _CONSOLE]
    if trackers:
        note = f"there is no tracker for {', '.join(unsupported)}" if unsupported else ""
        draft.put("monitor.monitor_type", trackers[0], name, note=note)
    if trackers[1:]:
        draft.put("monitor.also", trackers[1:], name, brief=True)
    if trackers:
        return
    if unsupported:
        draft.ask(name, f"there are {', '.join(_TRACKERS)}")
    else:
        draft.drop(name, "steps are shown by `rftd get` and `rftd watch`")
