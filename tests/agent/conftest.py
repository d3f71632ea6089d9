"""Real ranks, started once per world size for the whole folder."""

import pytest
from ranks import Scenarios
from worlds import ONE, THREE, TWO, WORKER


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="session")
def one(folder):
    return Scenarios(WORKER, folder / "1", 1, ONE)


@pytest.fixture(scope="session")
def two(folder):
    for name, options in TWO.items():
        if options.pop("nodes", False):
            options["directories"] = [str(folder / name / node) for node in ("node0", "node1")]
    return Scenarios(WORKER, folder / "2", 2, TWO)


@pytest.fixture(scope="session")
def three(folder):
    return Scenarios(WORKER, folder / "3", 3, THREE)
