"""Who may do what: the roles of those who ask, and what a submission of theirs may name.

asker       who asks: a name and a role
allowances  the allow-lists of the daemon's configuration, and paths below its folders
judge       the verdict on a submission, field by field
table       who may do what with what, as a table
asker       who asks: a name and a role
quota       the limits of a token, and what is taken of them
token_file  the named tokens as digests, and the owner's
tokens      the tokens that a daemon takes
token_holder  a token with its limits and what is taken
keyring     all of these, as a daemon asks them, and browsers that are signed in by one-time links
user_state  the daemons of this user, found from any directory
"""
