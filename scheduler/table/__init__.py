"""The host table: one column per attribute, one row per node of every cell. Pure memory, no input or output."""
