"""Starting this Python again, for work that may crash, hang or ask for all memory."""

from __future__ import annotations

import json
import sys

# -P and the parent's search path: the folder in which a command happens to run provides no modules.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from {} import main; main()"


def command(module: str, *arguments: str) -> list[str]:
    """The command line that calls ``main()`` of a module with ``sys.argv[1:]`` being ``arguments``."""
    return [sys.executable, "-P", "-c", _START.format(module), json.dumps(list(filter(None, sys.path))), *arguments]
