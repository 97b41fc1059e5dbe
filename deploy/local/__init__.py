"""A whole region on this machine: a broker, databases, all roles as processes, and configuration files as a person writes them.

``make region`` and ``make demo`` run it. Tests of several processes start it, too.
"""
