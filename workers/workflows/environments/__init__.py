"""Environments of other packages as workflows: the environment has the dataset and the reward, rftd has the model.

In reading order:

address      `EnvironmentAddress`: `gymnasium://FrozenLake-v1?size=100`, in place of a taskset's path
contract     the calls of a server: tasks, reset, step, score, close; and their answers
server       `EnvironmentServer`: the server's command in a sandbox, begun again after its end; a session,
             over HTTP on a Unix socket
workflow     `EnvironmentWorkflow`: a rollout of several turns in a session
rows         every row of an environment, for the file read by an experiment
programs/    the built-in server with its packages, run by any Python and importing nothing of rftd
"""
