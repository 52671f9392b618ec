"""Devices for the computations of engines: discovery, memory, and turns of several processes on one device.

host             the offer of a launcher: the devices of a machine, the engine packages installed there
discovery        finds the host's devices and packages, by the driver's own program
engine_build     the engine package able to run on a host, and the kind of device
compute_device   the device of a torch engine
device_memory    memory needed by an engine on a device, compared with the free memory
pinned_transfer  arrays of the host on a device
device_turn      turns of rollouts and training steps on one device
"""
