"""``/servers`` and all below it: boot, list, change, actions, operations and migrations.

What only one action needs stands beside it. What other resources need, too, belongs in ``api/lookup``.
"""
