"""Rules for what is run: names, data and batches, the share of the GPUs, explorers and the models beside them."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final, NamedTuple

from rftd.daemon.config.verl.draft import ExperimentDraft

_ROLLOUT: Final = "actor_rollout_ref.rollout"
_ACTOR: Final = "actor_rollout_ref.actor"
_INPUT: Final = "buffer.explorer_input"
_ENGINE: Final = "explorer.rollout_model"
_BESIDE: Final = "explorer.auxiliary_models[0]"
_PARALLEL: Final = f"{_ROLLOUT}.tensor_model_parallel_size"
_MINI: Final = f"{_ACTOR}.ppo_mini_batch_size"
_BATCH: Final = "data.train_batch_size"
_N: Final = f"{_ROLLOUT}.n"
_SPLITS: Final = ("train", "test", "val", "validation")
_MONITORS: Final = ("wandb", "tensorboard", "mlflow", "swanlab")
_MOST_FILES: Final = 100
_TIMEOUT_S: Final = 1200
"""The guide's examples wait so long for weights; veRL has no such wait."""


def sync_interval(draft: ExperimentDraft) -> int:
    """The mini-batches of one batch of veRL's: so many steps here are one there. An issue and 1 if it is no number."""
    batch = draft.number(_BATCH)
    mini = draft.number(_MINI)
    if batch % mini == 0:
        return batch // mini
    what = f"{_BATCH} is {batch}, which is no multiple of {_MINI}, {mini}"
    draft.contradict(
        _MINI if draft.given(_MINI) else _BATCH, what, f"make it one, such as {max(1, batch // mini) * mini}"
    )
    return 1


def put_running(draft: ExperimentDraft, interval: int, *, sync_offset: int) -> None:
    """Every field outside of `algorithm` and `trainer`."""
    _put_names(draft)
    for name, target in (
        ("actor_rollout_ref.model.path", "model.model_path"),
        ("data.max_prompt_length", "model.max_prompt_tokens"),
        ("data.max_response_length", "model.max_response_tokens"),
        ("trainer.total_epochs", "buffer.total_epochs"),
    ):
        draft.put(target, draft.value(name), name)
    _put_batches(draft, interval, sync_offset)
    _put_tasksets(draft)
    _put_evaluations(draft)
    _put_engines(draft)
    _put_monitor(draft)


def _put_names(draft: ExperimentDraft) -> None:
    for name, target in (("trainer.project_name", "project"), ("trainer.experiment_name", "name")):
        draft.put(target, str(draft.value(name)), name)
    below = f"{draft.value('trainer.project_name')}/{draft.value('trainer.experiment_name')}"
    folder = draft.given("trainer.default_local_dir")
    if folder is None:
        draft.put("checkpoint_root_dir", "./checkpoints", note="veRL's default, without project and name")
    else:
        written = str(folder.value).rstrip("/")
        root = written.removesuffix(f"/{below}") if written != below else "."
        note = "" if root != written else "files are in project and name below it"
        draft.put("checkpoint_root_dir", root or "/", "trainer.default_local_dir", note=note)
    mode = "trainer.resume_mode"
    if draft.value(mode) == "resume_path":
        draft.ask(mode, "an experiment goes on from its own folder; `rftd fork` starts from a step of another one")
    elif draft.given(mode):
        draft.put("continue_from_checkpoint", draft.value(mode) != "disable", mode)
    draft.ask("trainer.resume_from_path", "an experiment goes on from its own folder; see `rftd fork`")
    if draft.flag("trainer.val_only"):
        draft.put("mode", "bench", "trainer.val_only")
    else:
        draft.drop("trainer.val_only", "so it is here")


def _put_batches(draft: ExperimentDraft, interval: int, sync_offset: int) -> None:
    mini = draft.number(_MINI)
    n = draft.number(_N)
    draft.put("buffer.batch_size", mini, _MINI)
    draft.put("buffer.train_batch_size", mini * n, _MINI, _N, note=f"{mini} * {n}")
    steps = "trainer.total_training_steps"
    if draft.given(steps):
        note = f"times {interval}: a step here is one mini-batch" if interval > 1 else ""
        draft.put("buffer.total_steps", draft.number(steps) * interval, steps, note=note)
    draft.put("synchronizer.sync_style", "fixed", note="all rollouts of a batch are drawn before it is trained")
    ahead = "explorers are a step ahead" if sync_offset else "as veRL, on policy"
    draft.put("synchronizer.sync_offset", sync_offset, note=ahead)
    draft.put("synchronizer.sync_interval", interval, _BATCH, _MINI, note="the one by the other")
    draft.put("synchronizer.sync_timeout", _TIMEOUT_S, note="seconds; veRL has no such wait")


def _files(draft: ExperimentDraft, name: str) -> list[str]:
    value = draft.value(name)
    files = [str(each) for each in (value if isinstance(value, list) else [value])]
    if len(files) > _MOST_FILES:
        draft.contradict(name, f"names {len(files):,} files, and {_MOST_FILES} are read at most", "join them")
    return files[:_MOST_FILES]


def _put_tasksets(draft: ExperimentDraft) -> None:
    """A taskset for each file: of `FOLDER/train.parquet` the folder is the path, and `train` the split."""
    taken: set[str] = set()
    for name, kind in (("data.train_files", "tasksets"), ("data.val_files", "eval_tasksets")):
        if kind == "eval_tasksets" and draft.given(name) is None:
            draft.remark("veRL's default", name, f"is {draft.value(name)}; here nothing is evaluated")
            continue
        for index, file in enumerate(_files(draft, name)):
            here = f"{_INPUT}.{kind}[{index}]"
            path = PurePosixPath(file)
            folder = path.parent.name if "$" not in path.parent.name else ""
            whole = path.suffix == ".parquet" or (path.suffix in (".json", ".jsonl") and path.stem in _SPLITS)
            word = folder if whole and folder else path.stem
            # A name is a folder's, or that of a file: not of a variable.
            word = word if "$" not in path.name else f"taskset_{index}"
            title = word + ("_eval" if kind == "eval_tasksets" else "")
            while title in taken:
                title += f"_{index}"
            taken.add(title)
            draft.put(f"{here}.name", title)
            draft.put(f"{here}.storage_type", "file")
            draft.put(f"{here}.path", _local(str(path.parent) if whole else file), name, brief=True)
            if whole:
                draft.put(f"{here}.split", path.stem)
            for key, default in (("prompt_key", "prompt"), ("response_key", "answer")):
                given = draft.given(f"data.{key}")
                value = str(given.value) if given else default
                draft.put(f"{here}.format.{key}", value, *([f"data.{key}"] if given else []), note="look at the rows")
    train = len(_files(draft, "data.train_files"))
    _put_order(draft, train)
    note = "veRL chooses a reward by each row's data_source, here a workflow has it"
    draft.put(f"{_INPUT}.default_workflow_type", "math_workflow", note=note)
    if not draft.given("custom_reward_function.path"):
        draft.remark(
            "needs a person", "data_source", f"({note}: choose default_workflow_type and default_reward_fn_type)"
        )
    for name in ("reward_model.reward_manager", "reward.reward_manager.name"):
        if draft.value(name) in (None, "naive"):
            draft.drop(name, "so it is here")
        else:
            draft.ask(name, "choose a reward as default_reward_fn_type")


def _local(path: str) -> str:
    """The path so that no reader takes it for a name on a hub: veRL reads files alone."""
    return path if path.startswith(("/", "~", "$", ".")) or "://" in path else f"./{path}"


def _put_order(draft: ExperimentDraft, count: int) -> None:
    shuffle = "data.shuffle"
    rows = "data.train_max_samples"
    for index in range(count):
        here = f"{_INPUT}.tasksets[{index}]"
        if draft.given(shuffle):
            word = "shuffle" if draft.flag(shuffle) else "sequential"
            draft.put(f"{here}.data_selector.selector_type", word, shuffle)
        draft.put_given(f"{here}.data_selector.seed", "data.seed")
        if draft.given(rows) and draft.number(rows) > 0 and count == 1:
            draft.put(f"{here}.limit_rows", draft.number(rows), rows)
        if draft.flag(f"{_ROLLOUT}.ignore_eos"):
            draft.put(f"{here}.rollout_args.ignore_eos", True, f"{_ROLLOUT}.ignore_eos")
    if not draft.given(shuffle):
        text = "is true; here rows are taken in turn unless data_selector.selector_type is shuffle"
        draft.remark("veRL's default", shuffle, text)
    draft.drop(f"{_ROLLOUT}.ignore_eos", "so it is here")
    for name in (rows, "data.val_max_samples"):
        if draft.value(name) in (None, -1):
            draft.drop(name, "so it is here")
        else:
            draft.ask(name, "write limit_rows of each taskset")


def _put_evaluations(draft: ExperimentDraft) -> None:
    frequency = "trainer.test_freq"
    if draft.given(frequency):
        if draft.number(frequency) > 0:
            draft.put("explorer.eval_interval", draft.number(frequency), frequency)
        else:
            draft.drop(frequency, "there is an evaluation at the end in any case: leave eval_tasksets out for none")
    values = f"{_ROLLOUT}.val_kwargs"
    count = len(_files(draft, "data.val_files")) if draft.given("data.val_files") else 0
    greedy = draft.given(f"{values}.do_sample") is not None and not draft.flag(f"{values}.do_sample")
    for index in range(count):
        here = f"{_INPUT}.eval_tasksets[{index}]"
        draft.put_given(f"{here}.repeat_times", f"{values}.n")
        if greedy:
            draft.put(f"{here}.rollout_args.temperature", 0.0, f"{values}.do_sample")
            draft.drop(f"{values}.temperature", "do_sample is false")
        else:
            draft.put_given(f"{here}.rollout_args.temperature", f"{values}.temperature")
        for key in ("top_p", "top_k"):
            draft.put_given(f"{here}.rollout_args.{key}", f"{values}.{key}")
    draft.drop(f"{values}.do_sample", "the temperature says it")
    if count and not greedy and not draft.given(f"{values}.temperature"):
        text = "is 0, greedy; here evaluations are drawn as rollouts are unless rollout_args.temperature is written"
        draft.remark("veRL's default", f"{values}.temperature", text)
    sampled = f"{_ROLLOUT}.do_sample"
    if draft.flag(sampled):
        draft.drop(sampled, "so it is here")
    else:
        draft.ask(sampled, "greedy answers of one group are all the same: nothing is learnt from them")


class GpuSplit(NamedTuple):
    """Engines that take the GPUs of a cluster; the trainer has those that are left."""

    engines: int
    beside: int
    """Engines of the reward model."""
    left: int


def split_gpus(nodes: int, per_node: int, *, each: int, beside: int) -> GpuSplit | None:
    """A quarter of the GPUs for explorers, as much for a reward model, the rest for the trainer. None if it cannot be.

    One engine takes `each` GPUs, one of the reward model `beside` (0: there is none). The trainer is on one node:
    explorers get what it cannot have.
    """
    total = nodes * per_node
    quarter = total // 4
    others = max(1, quarter // beside) if beside else 0
    engines = max(1, quarter // each)
    while True:
        left = total - engines * each - others * beside
        if left < 1:
            return None
        if left <= per_node:
            return GpuSplit(engines, others, left)
        engines += 1


def _put_engines(draft: ExperimentDraft) -> None:
    nodes = draft.number("trainer.nnodes")
    per_node = draft.number("trainer.n_gpus_per_node")
    draft.put("cluster.node_num", nodes, "trainer.nnodes")
    draft.put("cluster.gpu_per_node", per_node, "trainer.n_gpus_per_node")
    parallel = draft.number(_PARALLEL)
    each = parallel
    for key, target in (
        ("data_parallel_size", "data_parallel_size"),
        ("pipeline_model_parallel_size", "pipeline_parallel_size"),
    ):
        name = f"{_ROLLOUT}.{key}"
        each *= draft.number(name)
        draft.put_given(f"{_ENGINE}.{target}", name)
    engine = f"{_ROLLOUT}.name"
    if draft.value(engine) in (None, "vllm"):
        draft.drop(engine, "explorers generate with vllm unless another engine is written")
    else:
        draft.ask(engine, "explorers generate with vllm, or with torch: explorer.rollout_model.engine_type")
    beside = _put_reward_model(draft)
    if nodes * per_node == 1 and not beside:
        draft.put("mode", "colocate", note="explorer and trainer take turns on the one GPU")
        draft.put_given(f"{_ENGINE}.tensor_parallel_size", _PARALLEL)
        draft.put(f"{_ENGINE}.engine_num", 1)
        return
    split = split_gpus(nodes, per_node, each=each, beside=beside)
    asked = parallel
    while split is None and parallel % 2 == 0:
        parallel //= 2
        each //= 2
        split = split_gpus(nodes, per_node, each=each, beside=beside)
    if split is None:
        what = f"{nodes} x {per_node} GPUs are too few for explorers of {each} each"
        what += f", a reward model of {beside}" if beside else ""
        name = _PARALLEL if draft.given(_PARALLEL) else "trainer.n_gpus_per_node"
        draft.contradict(name, f"{what} and a trainer with GPUs of its own", "give more GPUs, or smaller engines")
        return
    if parallel != asked:
        text = (
            f"({asked} would leave the trainer no GPU of its own: {parallel} is written. Give more GPUs if that is few)"
        )
        draft.remark("needs a person", _PARALLEL, text)
    if draft.given(_PARALLEL) or parallel > 1:
        draft.put(f"{_ENGINE}.tensor_parallel_size", parallel, _PARALLEL)
    note = f"GPUs: explorers {split.engines * each}, "
    note += f"the reward model {split.beside * beside}, " if beside else ""
    draft.put(f"{_ENGINE}.engine_num", split.engines, note=f"{note}the trainer {split.left}")
    if beside:
        draft.put(f"{_BESIDE}.engine_num", split.beside)
    text = f"(veRL runs all on the same GPUs, in turn. {note}the trainer {split.left}: choose what is fastest)"
    draft.remark("needs a person", f"{_ENGINE}.engine_num", text)


def _put_reward_model(draft: ExperimentDraft) -> int:
    """The auxiliary model that is a reward model; the GPUs of one engine of it, 0 if there is none."""
    use = "reward_model.enable"
    path = "reward_model.model.path"
    parallel = "reward_model.rollout.tensor_model_parallel_size"
    if not draft.flag(use):
        for name in (use, path, parallel):
            draft.drop(name, "there is no reward model")
        return 0
    if draft.given(path) is None:
        draft.wrong(use, f"is true, and {path} names no model", f"give {path}")
        return 0
    size = draft.number(parallel) if draft.given(parallel) else 1
    draft.put(f"{_BESIDE}.model_path", draft.value(path), path)
    draft.put(f"{_BESIDE}.tensor_parallel_size", size, *([parallel] if draft.given(parallel) else []))
    draft.done.setdefault(use, []).append(("explorer", "auxiliary_models"))
    text = "(a workflow has to ask the reward model, by name: docs/extending.md)"
    draft.remark("needs a person", path, text, draft.settings.given[path].place)
    return size


def _put_monitor(draft: ExperimentDraft) -> None:
    name = "trainer.logger"
    if draft.given(name) is None:
        return
    words = [str(word) for word in _files(draft, name)]
    chosen = [word for word in words if word in _MONITORS]
    if chosen:
        draft.put("monitor.monitor_type", chosen[0], name)
    elif set(words) <= {"console", "file"}:
        draft.drop(name, "steps are shown by `rftd get` and `rftd watch`")
    else:
        draft.ask(name, f"there are {', '.join(_MONITORS)}")
