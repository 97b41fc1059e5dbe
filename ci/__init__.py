"""The check: what runs it, and what it needs of the machine."""
