"""Live sources: cameras that send events or frames now, over a socket, a network or a device."""
