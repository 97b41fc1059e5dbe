"""What the revisions of both databases are written with."""
