"""What belongs to projects and users: flavors they may use, key pairs, quotas, limits and usage."""
