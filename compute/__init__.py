"""The agent on a host: it builds and destroys guests on orders of its cell, and asks the cell before it acts.

``work_table.py`` has the phases of its work, and what decides stands beside it without input or output. A hypervisor is a
driver; a new one implements ``driver.py``.
"""
