"""The rows of a taskset explored next, for selectors that do not follow from row positions alone.

selector        the protocol of a selector, and the inputs of its draws
registry        the selectors by name, and third parties'
easy_to_hard    rows in the order of their columns
difficulty      rows near an estimated pass rate
task_rows       the row of each new group: by its position, or drawn
"""
