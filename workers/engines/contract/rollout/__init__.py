"""The contract of rollout engines as checks for any async test runner, for built-in and third-party engines.

bench   `opened` opens an engine by its registered name, as an explorer does
checks  `CHECKS` for every engine, `MODEL_CHECKS` for an engine running the model of its folder

A check is a coroutine function of the bench. All checks share one engine, because opening one may take a minute: each
check counts from the current counters, and brings its own weights under the next version. With pytest's
`register_assert_rewrite` of this package a failed check shows its values.
"""
