"""Who may do what: the roles of those who ask, and what a submission of theirs may name.

asker       who asks: a name and a role
confined    paths below folders that the owner named
allowances  the allow-lists of the daemon's configuration
judge       the verdict on a submission, field by field
"""
