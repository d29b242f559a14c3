"""The device that numerical tests run on."""

import os

#: The CPU, unless the variable names another.
DEVICE = os.environ.get("TEST_DEVICE", "cpu")
