"""Files beside the log and the tables. In reading order:

disk                free space of volumes, and space used by folders
artifacts           files named by their sha256
tokenizer_copies    the tokenizer of each stage, copied to the artifacts at acceptance
answered_rows       the answers of an evaluation, from the log and from artifacts
checkpoints         checkpoint folders, registered in place
service_state       names of weights and optimizer at a remote service, as stored in a checkpoint
workplace           the folder in which a trainer prepares its renames; removed by the trainer's successor
table_files         files of database tables read by specifications
unreferenced        files of an experiment that no event names
own_places          the only locations allowed for an experiment's own files, whatever a record names
checkpoint_file     one file of a committed checkpoint, opened without following links
served_history      the hash chain of a served history, checked against promised rows
checkpoint_witness  heads of the log remembered by a checkpoint's folder
outside_files       missing or damaged files among those named by events
shared_memory       the folder of weights mapped by all workers of one machine
snapshots           folds in files, used only if they agree with the log
resume              a follower that continues from the newest snapshot of its fold
folder_owner        the log that owns an experiment's folder
survivors           witnesses of a shortened log, and the heads remembered by each
backup              a copy of a data folder in use, with the files named by its log
"""
