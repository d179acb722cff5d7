"""`python -m tagore_ann`: the `tagore` command."""

import sys

from ._command import main

sys.exit(main())
