"""A whole region on this machine: a broker and databases of its own, all roles as processes, and files as a person writes them."""
