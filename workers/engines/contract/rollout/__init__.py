"""The contract of rollout engines as checks that any test runner can await: for engines of ours and of third parties.

bench   `opened` opens an engine by its registered name, as an explorer does
checks  `CHECKS` for every engine, `MODEL_CHECKS` for one that runs the model of its folder

A check is a coroutine function of the bench. One engine serves all of them, for opening one may take a minute: each
counts from where it finds the counters, and brings weights of its own under the next version. With pytest's
`register_assert_rewrite` of this package a failed check shows its values.
"""
