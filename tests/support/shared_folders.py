"""Files that share what takes long to make run in one process of a parallel run: otherwise each process makes it."""

from typing import Any

import pytest

#: Folders of such files: a served dashboard, and homes with the result of a run without faults.
_FOLDERS = ("tests/dashboard/", "tests/recovering/kills/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    of_file = scheduler._split_scope
    scheduler._split_scope = lambda test: next(filter(test.startswith, _FOLDERS), None) or of_file(test)
    return scheduler
