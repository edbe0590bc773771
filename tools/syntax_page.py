"""Generator of docs/reference/syntax.md, from the syntax tables and the comments beside their elements.

``python -m tools.syntax_page > docs/reference/syntax.md``
"""

from __future__ import annotations

import re

from nnr_codec import constants
from nnr_codec.syntax.coder import byte_alignment
from nnr_codec.syntax.docs import comments, meaning_of, syntax_tables, value_tables


def page() -> str:
    """Return the page, in Markdown."""
    lines = [
        "# Syntax",
        "The syntax tables of ISO/IEC 15938-17:2024, 6.3, as implemented in `nnr_codec/syntax/tables.py`, with the",
        "meaning of each element. `make docs` generates this page.",
    ]
    for table in syntax_tables().values():
        lines += ["", f"## {table.name}(), {table.clause}", *([table.note + ".", ""] if table.note else [])]
        lines += ["| syntax | descriptor | meaning |", "|---|---|---|"]
        for row in table.rows:
            meaning = re.sub(r"Table (\d+)", r"[Table \1](#table-\1)", meaning_of(row.element))
            lines.append(f"| {'&emsp;' * len(row.within)}`{row.text}` | {row.descriptor} | {meaning} |")
    lines += ["", "## byte_alignment(), 6.3.5", (byte_alignment.__doc__ or "").partition(": ")[2].capitalize()]
    for number, values in value_tables().items():
        said = comments(constants)[values.__name__]
        lines += [
            "",
            f"## Table {number}",
            values.__doc__ or "",
            "",
            "| value | identifier | meaning |",
            "|---|---|---|",
        ]
        lines += [f"| {member.value} | `{name}` | {said[name]} |" for name, member in values.__members__.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
