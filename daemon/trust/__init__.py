"""Access control: the roles of askers, and the names allowed in their submissions.

asker       the name and the role behind a request
allowances  the allow-lists of the daemon's configuration, and paths below allowed folders
judge       the verdict on a submission, field by field
table       the rights of each kind of asker, as a table
quota       the limits of a token, and the current use
token_file  the named tokens as digests, and the owner's token
tokens      the tokens accepted by a daemon
token_holder  a token with limits and current use
keyring     all tokens as used by a daemon, and browsers signed in by one-time links
user_state  the daemons of the current user, found from any directory
"""
