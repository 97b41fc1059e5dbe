"""The HTTP API: a stateless subset of the OpenStack Compute API v2.1 for standard clients."""
