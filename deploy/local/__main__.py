"""``python -m deploy.local``."""

import sys

from deploy.local.command import main

if __name__ == "__main__":
    sys.exit(main())
