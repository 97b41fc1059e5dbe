"""The agent on a host: it builds and destroys guests on orders of its cell, and never trusts an order without asking first."""
