"""TRL's GRPOTrainer on the demo's GRPO stage, in an environment of its own. JSON: when which reward was reached.

Settings are those of examples/demo.yaml: 32 prompts of 8 completions a step, one optimizer step on the whole batch,
AdamW with lr 1e-3 and weight decay 0.01, a cosine down to a tenth over 300 steps, gradients cut at 1, temperature 1, at
most 5 tokens, no KL. The rest is chosen in TRL's favour, for so small a model on a CPU: one micro-batch and one
generation batch of all 256 (steps_per_generation 1, num_iterations 1: no log-probabilities are computed twice), float32
(bf16, the default, is emulated on most CPUs), no gradient checkpointing (the default is on), no vLLM (slower than
`generate` on a CPU), no data loader processes, no saving, no evaluation, no reports, no progress bar, no logs.
`loss_type` dapo is, with one micro-batch, the mean over all trained tokens: ours.

The clock starts when the first step begins, after imports, model and data were loaded; it is read each time that the
rewards of the 256 completions of a step are known, before the step trains on them.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer


class Course(TrainerCallback):  # type: ignore[misc]
    """Keeps the rewards of each step and stops at the target."""

    def __init__(self, target: float, stop: int) -> None:
        self.target = target
        self.stop = stop
        self.began_s: float | None = None
        self.began_cpu_s = 0.0
        self.seen: list[tuple[float, float]] = []
        """(seconds since the first step began, mean reward)"""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.began_s is None:
            self.began_s, self.began_cpu_s = time.perf_counter(), time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = control.should_training_stop or self.reached or len(self.seen) >= self.stop

    @property
    def reached(self) -> bool:
        """True if the last batch had the target."""
        return bool(self.seen) and self.seen[-1][1] >= self.target

    def exact_match(self, completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        """1 if the completion is the answer, white space around them aside: rftd's `exact_match_reward`."""
        texts = [completion[0]["content"] for completion in completions]
        rewards = [float(text.strip() == truth.strip()) for text, truth in zip(texts, answer, strict=True)]
        assert self.began_s is not None
        self.seen.append((time.perf_counter() - self.began_s, sum(rewards) / len(rewards)))
        return rewards


def settings(options: argparse.Namespace) -> GRPOConfig:
    """The demo's, in TRL's words."""
    return GRPOConfig(
        output_dir=options.folder,
        seed=options.seed,
        max_steps=options.steps,
        per_device_train_batch_size=options.prompts * options.repeat,
        num_generations=options.repeat,
        steps_per_generation=1,
        num_iterations=1,
        max_completion_length=5,
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        scale_rewards="group",
        loss_type="dapo",
        learning_rate=1e-3,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.1},
        weight_decay=0.01,
        max_grad_norm=1.0,
        optim=options.optim,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        cache_implementation=options.cache or None,
        use_transformers_continuous_batching=options.continuous,
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="the SFT checkpoint, a folder in Hugging Face's layout")
    parser.add_argument("--tasks", required=True, help="JSON lines with question and answer")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--stop", type=int, default=300, help="after so many steps; the schedule is that of --steps")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--optim", default="adamw_torch_fused")
    parser.add_argument("--cache", default="")
    parser.add_argument("--continuous", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)
    set_seed(options.seed)
    with open(options.tasks) as lines:
        rows = [json.loads(line) for line in lines]
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in rows]
    )
    course = Course(options.target, options.stop)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(options.model, padding_side="left"),
        reward_funcs=course.exact_match,
        args=settings(options),
        train_dataset=data,
        callbacks=[course],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    seconds, reward = course.seen[-1]
    print(
        json.dumps(
            {
                "reached_s": round(seconds, 3) if course.reached else None,
                "steps": len(course.seen),
                "ran_s": round(seconds, 3),
                "cpu_s": round(time.process_time() - course.began_cpu_s, 3),
                "reward_first": round(course.seen[0][1], 4),
                "reward_last": round(reward, 4),
                "threads": options.threads,
                "trl": trl.__version__,
                "transformers": transformers.__version__,
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
