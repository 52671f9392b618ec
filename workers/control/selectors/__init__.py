"""Which rows of a taskset are explored next, where that does not follow from their places alone.

selector        what a selector is, and what it decides on
registry        the selectors by name, and third parties'
easy_to_hard    rows in the order of their columns
difficulty      rows near a pass rate, which is estimated
task_rows       the row of each new group: by its place, or drawn
"""
