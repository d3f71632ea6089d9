"""`python -m grpo_sentinel.cli`: the command line without its installed script."""

import sys

from grpo_sentinel.cli import main

sys.exit(main())
