"""The agent on a host: it builds and destroys guests on orders of its cell, and asks the cell before it acts on an order."""
