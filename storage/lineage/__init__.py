"""Where a thing comes from and what became of it, over the tables alone. In reading order:

key       what a thing is called inside, and its kinds
graph     things, what links them, and what was left out, as they are sent
reading   SQL rows by lists of keys
finding   from what a person types to a key
upstream  what things were made of
downstream  what became of them
facts     one line about each thing
walk      both directions from one thing, bounded
"""
