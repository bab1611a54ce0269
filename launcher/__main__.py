"""``python -m lwcc.launcher``: the same as ``lwccrun``."""

import sys

from lwcc.launcher import main

if __name__ == "__main__":
    sys.exit(main())
