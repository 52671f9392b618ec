"""Lineage: the origin of a thing and its fate, over the tables alone. In reading order:

graph     things with their keys, their links, and counts of those left out, as they are sent
reading   SQL rows by lists of keys
finding   the key of a thing from the text that a person types
upstream  neighbours that things were made of
downstream  neighbours that were made of them
facts     one line about each thing
walk      both directions from one thing, bounded
"""
