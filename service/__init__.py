"""What every process needs and no single role owns: configuration, logging, periodic threads, batching.

There is no SQL and no bus here. A function that only one role calls belongs to that role.
"""
