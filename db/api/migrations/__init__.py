"""History of the API database."""
