"""`python -m grpo_sentinel`: the command line, where its script is not on the path."""

from grpo_sentinel.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
