"""The device of a measurement."""

import platform
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """Return the device's name, to print beside a figure."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = model[0].partition(":")[2].strip() if model else platform.processor()
    return f"{name}, {torch.get_num_threads()} threads"
