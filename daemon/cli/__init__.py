"""The command line. In reading order:

cli                the command line: a table of verbs, each imported only when it is called
settings           the options shared by every verb
option_group       several options passed to a verb as one argument
price              the price of an accelerator per hour
verbs/             one file for each verb, with its output
daemon_file        the options from a YAML file
service_options    the options of a daemon
alert_options      the options of alerts
allowance_options  the options allowing names to everybody but the owner
log_option         the options naming the log
living_wait        unlimited waits for a living process
output/            tables, figures, errors for people
entrance_options   the options of access control
folders_option     the option for access to experiments' folders
keeping_options    the options of the rules for dropping payloads and archiving files
launching_options  the options for the workers started by a daemon, and their hosts
trace_option       the options for exporting traces
"""
