"""``lab``: replay traces, and record a deployment as one."""
