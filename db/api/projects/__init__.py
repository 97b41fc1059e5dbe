"""Rows of projects and users: quotas, key pairs, flavors."""
