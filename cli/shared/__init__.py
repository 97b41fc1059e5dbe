"""What commands have in common: their base class, options, output, HTTP, and the deployment that they work on.

No command is here. The application of ``cli/app.py`` is known by its base class.
"""
