"""``nova``: commands that watch an existing OpenStack Nova. They read its databases, and write nothing."""
