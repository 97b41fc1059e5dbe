"""What filters, weighers and drivers may import: the request, the hosts, the members of a group, the settings, the types
of columns, and the base classes.

A plug-in needs nothing else of the scheduler.
"""
