"""The driver ``libvirt``: guests of QEMU, managed by the libvirt of this host.

``driver.py`` is the entry; what one file knows of libvirt, such as domains, power or disks, has its name. Nothing above
``compute`` imports it.
"""
