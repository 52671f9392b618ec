"""Files beside the log and the tables. In reading order:

disk                the free space of volumes, and the space that folders take up
artifacts           files by their sha256
answered_rows       the answers of an evaluation, from the log and from artifacts
checkpoints         folders of checkpoints, registered in place
service_state       the name at a service that a checkpoint's weights and optimizer have
workplace           the folder in which a trainer prepares what it renames; its successor takes it away
table_files         the files of database tables that specifications read
unreferenced        files of an experiment that no event names
own_places          the places at which an experiment's own files lie, whatever a record names
served_history      the chain of a served history, held against what was promised
checkpoint_witness  heads of the log that a checkpoint's folder remembers
outside_files       files that events name, and that are missing or damaged
shared_memory       the folder of weights that the workers of one machine map
snapshots           folds in files, believed only where the log agrees
resume              a follower that goes on from the newest snapshot of its fold
folder_owner        the log that an experiment's folder belongs to
survivors           witnesses of a log that was shortened, and the heads that each remembers
backup              a data folder, copied while it is in use, with the files that its log names
"""
