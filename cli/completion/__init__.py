"""``completion``: completion files for shells, made of the commands and their arguments."""
