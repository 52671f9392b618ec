"""Who may do what: the roles of those who ask, and what a submission of theirs may name.

asker       who asks: a name and a role
confined    paths below folders that the owner named
allowances  the allow-lists of the daemon's configuration
judge       the verdict on a submission, field by field
table       who may do what with what, as a table
asker       who asks: a name and a role
quota       the limits of a token, and what is taken of them
token_file  the named tokens as digests, and the owner's
tokens      the tokens that a daemon takes
token_holder  a token with its limits and what is taken
sessions    browsers that are signed in, by one-time links
keyring     all of these, as a daemon asks them
user_state  the daemons of this user, found from any directory
listener    whether a port of this machine is another user's
"""
