"""``status`` and ``top``: the deployment at a glance, once or again and again."""
