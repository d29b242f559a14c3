"""The modules in an interpreter's memory after an import."""

import json
import subprocess
import sys

from tests.support.preloaded import ROOT

_IMPORT = """
import importlib, json, sys
for names in json.loads(sys.argv[1]):
    for name in names:
        importlib.import_module(name)
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported_with(*modules: list[str]) -> list[set[str]]:
    """Return the packages in a fresh interpreter's memory after importing each list, beside the lists before."""
    command = [sys.executable, "-P", "-c", _IMPORT, json.dumps(modules)]
    found = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    return [set(json.loads(line)) for line in found.stdout.splitlines()]
