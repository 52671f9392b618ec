"""Agents of AgentScope under Trinity-RFT's names, each a command run by the Python with the package.

In reading order:

names      the names, and the line by which one is allowed
workflow   the workflows by name: a ReAct agent alone, with Python, with a search, and a function of a file
run_agent  the command, copied into the folder of each rollout and importing nothing of rftd
"""
