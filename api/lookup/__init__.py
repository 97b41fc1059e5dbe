"""What a request names, looked up: flavors, images, ports, hosts, one server with its latest state, answers of schedulers and
agents.

These modules serve several resources. They answer no route themselves.
"""
