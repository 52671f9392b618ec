"""The training of one stage, apart from the engine that computes gradients.

In reading order:

micro_batch    `MicroBatch`: some responses of a batch, as columns of their trained tokens
learner        `Learner`: what an engine gives: values of these tokens, and the gradient of a loss over them
updates        which samples each optimizer step of a batch has: epochs and mini-batches; checks of a batch
batch_pass     what must be known of a whole batch before its first step
mismatched     responses after prompts that they do not answer, and how far policy and reference are apart there
steps          the optimizer steps of a batch: gradients, clipping, masks chosen among all of a step
trainer_state  how far a stage has come, as a checkpoint keeps it
stage_training  a batch from its checks to its figures: schedule, adaptive KL, skipped steps

Engines alone import this package, for it imports torch. One whose ranks share a batch runs all of it on every rank.
"""
