"""``install-files``: systemd units and folders for the roles of a deployment."""
