"""Ratio, KL and terms of the objective at each token, recomputed by a replay on request: against the trainer's own."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator

import pytest
from synthetic.browser.window import chromium, window_in
from synthetic.daemon.scene import EXPERIMENT, Scene
from synthetic.daemon.torch_world import TORCH, torch_files
from synthetic.until import poll

from rftd.daemon.http.views import tokens as token_views
from rftd.ops.errors import ConflictError

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two ended runs: `sums` on torch with a KL loss and an entropy bonus, `fake` without a model."""
    scene = Scene(tmp_path_factory.mktemp("terms"))
    torch_files(scene.folder)
    objective = (
        "algorithm.kl_loss_fn=k3",
        "algorithm.kl_loss_fn_args={kl_coef: 0.05}",
        "algorithm.entropy_loss_fn_args={entropy_coef: 0.01}",
    )
    with scene.host:
        name = scene.submit(EXPERIMENT, "stages=[]", *TORCH, *objective, "buffer.total_steps=8")
        assert scene.until_ended(name).experiment.summary.state == "completed"
        fake = scene.submit(EXPERIMENT, "name=fake", "stages=[]", "buffer.total_steps=2", "explorer.eval_interval=100")
        assert scene.until_ended(fake).experiment.summary.state == "completed"
        yield scene


def test_the_terms_of_a_step_add_up_to_what_the_trainer_recorded(ended: Scene) -> None:
    with ended.client() as client:
        run = client.run("sums")
        [step] = run.steps(first=5, last=5)
        rows = run.experiences(step=5, limit=None)
        tokens = [token for row in rows for token in run.tokens(row.id, recompute=True)]
        window = client.ask(token_views.tokens, name="sums", experience=rows[0].id, n=1).value
    assert window.recomputation is not None
    assert window.recomputation.state == "done"
    assert not [note for note in window.notes if "differ" in note], "the weights of the replay are those of the step"
    trained = [token for token in tokens if token.mask]
    assert trained
    assert all(token.ratio is None and token.objective is None for token in tokens if not token.mask)
    ratios = [token.ratio for token in trained if token.ratio is not None]
    assert len(ratios) == len(trained)
    metrics = step.metrics
    assert max(ratios) == pytest.approx(metrics["mismatch/ratio/max"], rel=1e-6)
    assert min(ratios) == pytest.approx(metrics["mismatch/ratio/min"], rel=1e-6)
    assert max(ratios) > 1.0001, "older weights drew some of the tokens"
    for name, figure, coefficient in (
        ("objective", "actor/final_loss", 1.0),
        ("policy_term", "actor/pg_loss", 1.0),
        ("kl_term", "actor/kl_loss", 0.05),
        ("entropy_term", "actor/entropy_loss", -0.01),
    ):
        total = math.fsum(getattr(token, name) for token in trained)
        assert total == pytest.approx(coefficient * metrics[figure], rel=1e-4, abs=1e-7), name


def test_an_answer_is_kept_and_printed(ended: Scene) -> None:
    with ended.client() as client:
        [row] = client.run("sums").experiences(step=5, limit=1)
    printed = ended.rftd("experiences", "show", "sums", row.id, "--recompute")
    assert printed.status == 0, printed
    assert "RATIO" in printed.out
    assert "OBJECTIVE" in printed.out
    [kept] = ended.data.terms.glob("*/5-*.terms")
    written_ns = kept.stat().st_mtime_ns
    again = ended.rftd("experiences", "show", "sums", row.id, "--recompute", "--json")
    assert again.status == 0, again
    assert len(json.loads(again.out)["terms"]["ratios"]) == row.response_tokens
    assert kept.stat().st_mtime_ns == written_ns
    kept.write_bytes(kept.read_bytes()[:40])
    assert ended.rftd("experiences", "show", "sums", row.id, "--tokens").status == 0
    assert not kept.exists(), "a damaged answer is computed again when asked for"


def test_a_button_below_the_tokens_recomputes_their_ratios(ended: Scene) -> None:
    with ended.client() as client:
        [row] = client.run("sums").experiences(step=4, limit=1)
    with chromium() as browser, window_in(browser, ended.link()) as window:
        page = window.page
        page.goto(f"{ended.host.url}/runs/sums/rollouts?id={row.id}")
        terms, canvas = page.locator("#strips .terms"), page.locator("#strips canvas")
        terms.get_by_text("Replays step 4").wait_for()
        before = canvas.bounding_box()["height"]
        terms.get_by_role("button", name="Recompute ratios").click()
        terms.get_by_text("Recomputed by a replay of step 4.").wait_for()
        canvas.focus()
        page.keyboard.press("End")
        page.locator("#strips .readout", has_text="ratio when trained").wait_for()
        assert canvas.bounding_box()["height"] > before, "strips of ratio and objective"
        window.check_faults()


def test_a_replay_waits_for_a_run_and_begins_at_an_older_checkpoint_than_one_removed(ended: Scene) -> None:
    [job] = ended.folder.glob("checkpoints/**/sums")
    shutil.rmtree(job / "global_step_6")
    with ended.client() as client:
        [row] = client.run("sums").experiences(step=7, limit=1)
        [other] = client.run("sums").experiences(step=2, limit=1)
        beside = ended.submit(EXPERIMENT, "name=beside", "stages=[]", "buffer.total_steps=100000")
        ended.until_step(beside, 1)
        body = token_views.Recompute()
        state = client.send(token_views.recompute, body, name="sums", experience=row.id).value
        assert state.state == "queued"
        assert client.send(token_views.recompute, body, name="sums", experience=row.id).value.state == "queued"
        with pytest.raises(ConflictError, match=r"step 7 of experiment .* is being recomputed"):
            client.send(token_views.recompute, body, name="sums", experience=other.id)

        def sentence() -> str:
            window = client.ask(token_views.tokens, name="sums", experience=row.id, n=1).value
            return "" if window.recomputation is None else window.recomputation.sentence

        poll(lambda: "no run of this daemon" in sentence())
        assert ended.rftd("cancel", beside, "--wait").status == 0
        assert client.run("sums").recompute(row.id).state == "done"


def test_steps_that_cannot_be_replayed_have_a_clear_answer(ended: Scene) -> None:
    with ended.client() as client:
        run = client.run("sums")
        experiences = run.experiences(limit=None)
        rows = {row.step: row for row in experiences}
        untrained = [row for row in experiences if row.step is None]
        for row in untrained[:1]:
            with pytest.raises(ConflictError, match=r"never trained|no step trained"):
                run.recompute(row.id)
        [of_fake] = client.run("fake").experiences(step=1, limit=1)
        with pytest.raises(ConflictError, match=r"this experiment's trainer 'fake' does not record loss terms"):
            client.run("fake").recompute(of_fake.id)
        model = ended.folder / "model"
        model.rename(ended.folder / "aside")
        try:
            with pytest.raises(ConflictError, match=r"step 1 cannot be recomputed: .*config.json is missing"):
                run.recompute(rows[1].id)
        finally:
            (ended.folder / "aside").rename(model)
        assert ended.rftd("archive", "sums").status == 0
        with pytest.raises(ConflictError, match=r"archived or removed"):
            run.recompute(rows[6].id)
