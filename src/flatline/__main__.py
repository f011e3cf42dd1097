"""``python -m flatline``."""

import sys

from flatline.cli import main

if __name__ == "__main__":
    sys.exit(main())
