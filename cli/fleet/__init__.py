"""Commands of operators on cells, hosts, images, networks, flavors, quotas and aggregates.

Each file has the commands of one noun. They open the databases themselves, because an operator may have no API.
"""
