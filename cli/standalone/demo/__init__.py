"""``superconductor demo``: a region in one process, a scripted workload of about 500 servers, and a strict verdict on every one."""
