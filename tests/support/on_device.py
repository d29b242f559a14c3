"""A pytest plugin that runs numerical tests on the device that TEST_DEVICE names.

The device becomes the default of what tests call. Tensors that a test makes are moved there, and come back where the
test reads them as arrays, so that its oracle stays in numpy. The code under test gets no such help: a tensor of its own
on the wrong device is an error. The summary counts the tests that allocated memory on a CUDA device, and names the
others.
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

#: Named by tests without a device; elsewhere they are always given one.
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
    """Moves tests to the device until the end of the run."""
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
    """Notes what has been allocated on the device before the test and its fixtures."""
    item.user_properties.append((_ALLOCATIONS, _allocations()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports what has been allocated since then; pytest-xdist carries it to the first process."""
    report = yield
    report.user_properties = [
        (name, _allocations() - int(value)) if name == _ALLOCATIONS and isinstance(value, int) else (name, value)
        for name, value in report.user_properties
    ]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says which tests used the device."""
    reports = [each for name in ("passed", "failed") for each in terminalreporter.stats.get(name, ())]
    counts = {each.nodeid: dict(each.user_properties).get(_ALLOCATIONS, 0) for each in reports if each.when == "call"}
    never = sorted(test for test, count in counts.items() if not count)
    terminalreporter.section(f"{len(counts) - len(never)} tests allocated on {DEVICE}, {len(never)} did not")
    for test in never:
        terminalreporter.write_line(test)


def _allocations() -> int:
    # By its number, which torch need not ask for: tests pretend that there is no device.
    return int(torch.cuda.memory_stats(torch.device(DEVICE).index or 0).get("allocation.all.allocated", 0))


def _set_default(function: Callable[..., Any]) -> None:
    """Makes DEVICE the default of the parameter `device`."""
    keyword = function.__kwdefaults__
    if keyword and "device" in keyword:
        keyword["device"] = DEVICE
    else:
        positional = function.__code__.co_varnames[: function.__code__.co_argcount]
        assert positional[-1] == "device"
        function.__defaults__ = (*(function.__defaults__ or ())[:-1], DEVICE)


class _TensorsOfTests(TorchFunctionMode):
    """Tensors that tests make are on the device, and on the CPU where tests read them as arrays."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READ and _by_a_test():
            return func(args[0].cpu(), *args[1:], **kwargs)
        result = func(*args, **kwargs)
        if func in _MADE and "device" not in kwargs and _by_a_test():
            return result.detach().to(DEVICE).requires_grad_(result.requires_grad)
        return result


def _from_numpy(array: Any, from_numpy: Callable[[Any], Tensor] = torch.from_numpy) -> Tensor:
    """In place of torch's own, which no mode sees."""
    return from_numpy(array).to(DEVICE) if _by_a_test() else from_numpy(array)


def _by_a_test() -> bool:
    """Whether the innermost caller that is ours is a test, and not what it tests."""
    frame = sys._getframe(2)
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in _OURS and frame.f_globals["__name__"] != __name__:
            return package == "tests"
        frame = frame.f_back  # type: ignore[assignment]
    return False
