"""A pytest plugin that runs numerical tests on the device named by TEST_DEVICE.

The device becomes the default of the functions that tests call. Tensors made by a test are moved there, and come back
when the test reads them as arrays, so that its oracle stays in numpy. The code under test gets no such help: its own
tensor on the wrong device is an error. The summary counts the tests that allocated memory on a CUDA device, and names
the others.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import hypothesis
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import model_store.build
import projector.model
import projector.training.fit
import projector.training.fitted
import projector.training.scaling
from projector.graph.features import FeatureMatrix
from projector.network.propagation import Propagator
from tests.support.device import DEVICE

#: Functions that tests call without a device; other code always passes one.
_CALLED: tuple[Callable[..., Any], ...] = (
    model_store.build.build_model,
    projector.model.fit,
    projector.training.fit.follow_training,
    projector.training.fit.train,
    projector.training.fitted.fit_graph,
    projector.training.scaling.well_scaled,
    FeatureMatrix.__init__,
    Propagator.build.__func__,  # type: ignore[attr-defined]
)
_MADE = {
    torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.rand, torch.randint,
    torch.randn, torch.tensor, torch.zeros,
}  # fmt: skip
_READ: tuple[Any, ...] = (Tensor.numpy, Tensor.__array__)
_OURS = ("benchmarks", "lethe_client", "model_store", "projector", "service", "tests")
_ALLOCATIONS = "allocations on the device"


def pytest_configure(config: pytest.Config) -> None:
    """Move tests to the device until the end of the run."""
    for function in _CALLED:
        _set_default(function)
    hypothesis.settings.register_profile("device", deadline=None)
    hypothesis.settings.load_profile("device")
    torch.from_numpy = _from_numpy  # type: ignore[assignment]
    stack = ExitStack()
    stack.enter_context(_TensorsOfTests())
    config.add_cleanup(stack.close)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Record the allocations on the device before the test and its fixtures."""
    item.user_properties.append((_ALLOCATIONS, _allocations()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report the allocations since then; pytest-xdist sends them to the first process."""
    report = yield
    report.user_properties = [
        (name, _allocations() - int(value)) if name == _ALLOCATIONS and isinstance(value, int) else (name, value)
        for name, value in report.user_properties
    ]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the tests that did not use the device."""
    reports = [each for name in ("passed", "failed") for each in terminalreporter.stats.get(name, ())]
    counts = {each.nodeid: dict(each.user_properties).get(_ALLOCATIONS, 0) for each in reports if each.when == "call"}
    never = sorted(test for test, count in counts.items() if not count)
    terminalreporter.section(f"{len(counts) - len(never)} tests allocated on {DEVICE}, {len(never)} did not")
    for test in never:
        terminalreporter.write_line(test)


def _allocations() -> int:
    # With an explicit number, torch does not query the device, since tests may pretend that there is none.
    return int(torch.cuda.memory_stats(torch.device(DEVICE).index or 0).get("allocation.all.allocated", 0))


def _set_default(function: Callable[..., Any]) -> None:
    """Make DEVICE the default of the parameter `device`."""
    keyword = function.__kwdefaults__
    if keyword and "device" in keyword:
        keyword["device"] = DEVICE
    else:
        positional = function.__code__.co_varnames[: function.__code__.co_argcount]
        assert positional[-1] == "device"
        function.__defaults__ = (*(function.__defaults__ or ())[:-1], DEVICE)


class _TensorsOfTests(TorchFunctionMode):
    """Keeps tensors made by tests on the device, and moves them to the CPU when tests read them as arrays."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READ and _by_a_test():
            return func(args[0].cpu(), *args[1:], **kwargs)
        result = func(*args, **kwargs)
        if func in _MADE and "device" not in kwargs and _by_a_test():
            return result.detach().to(DEVICE).requires_grad_(result.requires_grad)
        return result


def _from_numpy(array: Any, from_numpy: Callable[[Any], Tensor] = torch.from_numpy) -> Tensor:
    """Replaces torch's own, which no mode intercepts."""
    return from_numpy(array).to(DEVICE) if _by_a_test() else from_numpy(array)


def _by_a_test() -> bool:
    """Whether the innermost caller in this project is a test rather than the code under test."""
    frame = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in _OURS and frame.f_globals["__name__"] != __name__:
            return package == "tests"
        frame = frame.f_back  # type: ignore[assignment]
    return False
