"""What filters, weighers and drivers may import: the request, the hosts, the members of a group, the settings, and their base
classes.

The types of columns are in ``scheduler/table``. A plug-in needs nothing else of the scheduler.
"""
