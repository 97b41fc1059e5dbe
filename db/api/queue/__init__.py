"""The durable queue of boots: accepted batches, their leases, holds, and how requests leave it."""
