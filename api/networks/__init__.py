"""``/network``: networks, ports and security groups as a network service serves them."""
