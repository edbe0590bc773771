"""Command line that starts this Python again, for work that may crash, hang or exhaust memory."""

from __future__ import annotations

import json
import sys

# -P and the parent's search path: no modules are imported from the working directory.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {} import main; main()"


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that calls ``main()`` of a module with ``arguments`` as ``sys.argv[1:]``."""
    return [sys.executable, "-P", "-c", _START.format(module), json.dumps(list(filter(None, sys.path))), *arguments]
