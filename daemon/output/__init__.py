"""What people and programs read on a terminal. In reading order:

failure     an error on standard error, and its exit status; a report for a bug
data        JSON, JSON lines or YAML on standard output
sparkline   a curve in one line of text
quantity    ages, sizes and rates in few characters
table       plain tables
why         what each role waits for
dlq         dead letters
lineage     a lineage as a tree, or for Graphviz
lengths     of responses, generated and trained
forecast    what an experiment would do, and forecast_picture: the same as a picture
page        the one page of `rftd get` and `rftd watch`
"""
