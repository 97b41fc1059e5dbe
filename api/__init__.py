"""The HTTP front door: a subset of the OpenStack Compute API v2.1 that standard clients can drive. Stateless."""
