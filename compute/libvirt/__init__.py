"""The driver ``libvirt``: guests of QEMU, managed by the libvirt of this host."""
