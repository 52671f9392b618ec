"""Pipelines: operators on the experiences of finished groups before the groups close, and on rows before experiments.

operator    an experience as seen by operators, and the protocol of an operator
operators   the built-in operators, by the guide's names
ruler       a judge's ranking of a group's answers as their rewards
registry    every operator by name
pipeline    the operators of a stage in order, and the verdicts on a group
task_operator   a row as seen by operators of the task pipeline, and the protocol of an operator
task_operators  the built-in operators on rows, by Data-Juicer's names
priority        priorities of rows, from the figures of operators
task_pipeline   the rows of all inputs after the operators, ordered, with lineage
juicer_service  the service Data-Juicer over HTTP and Arrow
juicer_server   that service's program, for another Python
juicer_operator operators of the service, on experiences and on rows
task_process    the process of one task pipeline
"""
