"""What may go: what no event names, by the names of our own files; nothing else in the folder is touched."""

from __future__ import annotations

from pathlib import Path

import msgspec
from synthetic.log.synthetic_run import spec_of

from rftd.storage.files.shared_memory import shared_folder
from rftd.storage.files.unreferenced import (
    GRACE_S,
    Referenced,
    ours,
    remove,
    remove_empty,
    remove_empty_memory,
    unreferenced,
)

FOREIGN = (
    "notes.txt",
    "datasets/mine.arrow",
    "global_step_x/file",
    "weights/mine/file",
    "log/my.log",
    "artifacts/readme",
    ".hidden",
)
OURS = {
    "global_step_4/actor/model.safetensors": "",
    "global_step_8/actor/model.safetensors": "no checkpoint.committed names it",
    ".global_step_9.tmp/half": "it was never finished",
    ".global_step_4.old/file": "another took its place",
    ".global_step_5.old/file": "",
    "latest_checkpointed_iteration.txt": "",
    ".latest_checkpointed_iteration.txt.tmp": "it was never finished",
    "weights/v4-g0/model.safetensors": "",
    "weights/v5-g1/model.safetensors": "no weights.published names it",
    "weights/.v6-g1.partial/model.safetensors": "it was never finished",
    "weights/v6-g1.mapped": "",
    "weights/v7-g1.mapped": "no weights.published names it",
    "weights/.spare-12.mapped.partial": "it was never finished",
    "weights/v5-g1-e3/model.safetensors": "no weights.published names it",
    "weights/v5-g1-e12-r1/model.safetensors": "no weights.published names it",
    "weights/.v6-g1-e3.gone/model.safetensors": "it was never finished",
    "weights/v7-g1-e3.mapped": "no weights.published names it",
    "weights/.spare-e3-12.mapped.partial": "it was never finished",
    f"artifacts/ab/{'ab' * 32}": "",
    f"artifacts/cd/{'cd' * 32}": "no event names it",
    "artifacts/cd/.xyz.tmp": "it was never finished",
    f"snapshots/{7:016d}.fold": "",
    f"snapshots/.{8:016d}.fold.tmp": "it was never finished",
    f"datasets/{'ef' * 16}-0.v1.arrow": "",
    f"datasets/{'ef' * 16}.json": "",
    f"datasets/.{'ef' * 16}-0.v1.arrow.host-12.tmp": "it was never finished",
    f"datasets/.{'ef' * 16}-0.v1.arrow.lock": "it was never finished",
    "log/trainer.log": "",
    "turn.door": "",
    "turn.room": "",
    "log/explorer_0.log": "",
}


def written(folder: Path) -> None:
    for name in (*FOREIGN, *OURS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("12345")


def kept_at(folder: Path, **changes: object) -> Referenced:
    kept = Referenced(
        checkpoints=frozenset({str(folder / "global_step_4")}),
        weights=frozenset({str(folder / "weights/v4-g0"), str(folder / "weights/v6-g1.mapped")}),
        artifacts=frozenset({"ab" * 32}),
        snapshots=True,
    )
    return msgspec.structs.replace(kept, **changes)


def shown(path: str, folder: Path) -> str:
    return str(Path(path).relative_to(folder))


def test_what_no_event_names_is_garbage_and_nothing_else(tmp_path: Path) -> None:
    written(tmp_path)
    found = ours(spec_of("one", 1, str(tmp_path)))
    judged = {
        shown(each.path, tmp_path): each.why for each in unreferenced(found, kept_at(tmp_path), before_ns=1 << 62)
    }
    expected = {}
    for name, why in OURS.items():
        parts = name.split("/")
        depth = 2 if parts[0] in ("weights", "snapshots", "datasets", "log") else 3 if parts[0] == "artifacts" else 1
        if why:
            expected["/".join(parts[:depth])] = why
    assert judged == expected
    assert all(each.size_bytes == 5 for each in unreferenced(found, kept_at(tmp_path), before_ns=1 << 62))


def test_what_is_young_or_not_known_stays(tmp_path: Path) -> None:
    written(tmp_path)
    found = ours(spec_of("one", 1, str(tmp_path)))
    assert list(unreferenced(found, kept_at(tmp_path), before_ns=0)) == []
    now_ns = (tmp_path / "artifacts").stat().st_mtime_ns + 1_000_000_000
    soon = {each.path for each in unreferenced(found, kept_at(tmp_path), before_ns=1 << 62, now_ns=now_ns)}
    assert not any("cdcd" in path for path in soon)
    assert any("global_step_8" in path for path in soon)
    later_ns = now_ns + int(GRACE_S * 1e9)
    assert any(
        "cdcd" in each.path for each in unreferenced(found, kept_at(tmp_path), before_ns=1 << 62, now_ns=later_ns)
    )
    unknown = kept_at(tmp_path, artifacts=None)
    assert not any("cdcd" in each.path for each in unreferenced(found, unknown, before_ns=1 << 62))
    ended = kept_at(tmp_path, snapshots=False)
    assert any(each.path.endswith(".fold") for each in unreferenced(found, ended, before_ns=1 << 62))
    assert any(each.path.endswith("v6-g1.mapped") for each in unreferenced(found, ended, before_ns=1 << 62))
    assert any(each.path.endswith("v4-g0") for each in unreferenced(found, ended, before_ns=1 << 62))
    assert not any(each.path.endswith("/global_step_4") for each in unreferenced(found, ended, before_ns=1 << 62))


def test_weights_in_memory_are_found_by_the_specification_alone(tmp_path: Path) -> None:
    spec, memory = spec_of("one", 1, str(tmp_path / "job")), tmp_path / "memory"
    sync = msgspec.structs.replace(spec.stages[1].synchronizer, sync_method="memory", memory_dir=str(memory))
    spec = msgspec.structs.replace(
        spec, stages=(spec.stages[0], msgspec.structs.replace(spec.stages[1], synchronizer=sync))
    )
    folder = shared_folder(spec.job_dir, str(memory))
    folder.mkdir(parents=True)
    for name in ("v3-g0.mapped", ".spare-7.mapped.partial", "notes"):
        (folder / name).write_text("12345")
    remove(each.path for each in ours(spec))
    assert [each.name for each in folder.iterdir()] == ["notes"]
    (folder / "notes").unlink()
    (folder / "v4-g0.mapped").touch()
    remove_empty_memory(spec)
    assert folder.exists()
    remove([str(folder / "v4-g0.mapped")])
    remove_empty_memory(spec)
    assert memory.exists()
    assert not folder.exists()


def test_removing_all_of_ours_leaves_what_is_not(tmp_path: Path) -> None:
    job = tmp_path / "job"
    written(job)
    spec = spec_of("one", 1, str(job))
    remove(each.path for each in ours(spec))
    remove_empty(spec)
    left = {str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()}
    assert left == set(FOREIGN)
    for name in FOREIGN:
        (job / name).unlink()
    for folder in (job / "weights/mine", job / "global_step_x"):
        folder.rmdir()
    remove_empty(spec)
    assert not job.exists()


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path: Path) -> None:
    job, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    for folder in (job, elsewhere):
        folder.mkdir()
    (elsewhere / "precious").write_text("x")
    (job / "global_step_3").symlink_to(elsewhere)
    remove(each.path for each in ours(spec_of("one", 1, str(job))))
    assert (elsewhere / "precious").exists()
    assert not (job / "global_step_3").is_symlink()
