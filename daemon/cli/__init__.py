"""The command line. In reading order:

cli                the command line: a table of verbs, each imported only when it is called
settings           the options that every verb shares
option_group       several options that a verb takes as one value
price              what an hour of an accelerator costs
verbs/             one file for each verb, with what it shows
daemon_file        the options from a YAML file
service_options    what a daemon is told
allowance_options  the options that allow names to others than the owner
log_option         the options that say where the log is
living_wait        waits for a process that is alive, without an end of its own
output/            tables, figures, errors for people
entrance_options   the options that say who is let in, and how
folders_option     the option that names folders that others share
keeping_options    the options of the rules by which payloads and files go
launching_options  the options that say which workers are started, and where
trace_option       the option that says where traces go
"""
