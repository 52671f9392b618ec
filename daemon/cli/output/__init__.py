"""Output of every verb for people and programs at a terminal. In reading order:

failure           an error on standard error, and its exit status; a report for a bug
data              JSON, JSON lines, YAML or CSV on standard output
terminal          text of which no line is wider than the terminal
quantity          ages, sizes, rates and curves in few characters
table             plain tables
stage_line        the stages of an experiment in one line
forecast_picture  what an experiment would do, as a picture
"""
