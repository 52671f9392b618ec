"""Algorithms, one file for each: the parts that it takes by default, what it needs, where it comes from."""
