"""Output of every verb for people and programs at a terminal. In reading order:

failure           an error on standard error, and its exit status; a report for a bug
data              JSON, JSON lines, YAML or CSV on standard output
terminal          text fitted to the terminal's width
quantity          ages, sizes, rates and curves in few characters
table             plain tables
stage_line        the stages of an experiment in one line
forecast_picture  the forecast of an experiment as a picture
"""
