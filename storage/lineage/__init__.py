"""Lineage: causes and effects of an entity (an experience, a step, weights …), from the tables alone. In reading order:

graph     nodes with their keys, links, and counts of hidden neighbours, as sent to clients
reading   SQL rows by lists of keys
finding   the key of a node from the text typed by a person
upstream  neighbours as causes of a node
downstream  neighbours as effects of a node
tree      one direction as lines of an indented tree
facts     a line about each node
walk      both directions from one node, bounded
"""
