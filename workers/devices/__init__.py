"""Devices that engines compute on.

host             what a launcher can give: the devices of a machine, the engine packages installed there
discovery        finds that out, by the driver's own program
engine_build     which engine package can run there, and on what
compute_device   the device that a torch engine computes on
device_memory    what an engine needs on its device, against what is free there
pinned_transfer  arrays of the host on a device
device_turn      rollouts and training steps take turns on one device
"""
