"""Devices that engines compute on.

compute_device   the device that a torch engine computes on
device_memory    what an engine needs on its device, against what is free there
pinned_transfer  arrays of the host on a device
device_turn      rollouts and training steps take turns on one device
"""
