"""Runs grpo_script.py as an installed wheel would: the `.pth` is read when the interpreter starts, nothing else."""

import runpy
import site
import sys
from pathlib import Path

HERE = Path(__file__).parent
site.addsitedir(str(HERE.parents[1]))
sys.argv[0] = str(HERE / "grpo_script.py")
runpy.run_path(sys.argv[0], run_name="__main__")
