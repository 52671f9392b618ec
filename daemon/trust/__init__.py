"""Who may do what: the roles of those who ask, and what a submission of theirs may name.

asker      who asks: a name and a role
"""
