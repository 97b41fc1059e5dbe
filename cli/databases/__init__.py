"""Commands on databases and configurations: schemas, upgrades, verify, purge, keys.

They open the databases themselves. What they write follows the same guards as the roles.
"""
