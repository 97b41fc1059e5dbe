"""History of the cell databases."""
