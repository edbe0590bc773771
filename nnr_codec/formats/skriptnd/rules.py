"""Rules for SkriptND models (NNEF 2 draft)."""

from __future__ import annotations

from ..findings import ModelRule

_RULES = (
    ModelRule("sknd-text", "2.4", "violation", "A module is UTF-8 without NUL or byte order mark."),
    ModelRule("sknd-syntax", "2.16", "violation", "A module follows the grammar, and declares a name once."),
    ModelRule("sknd-version", "2.16", "violation", "The version of a module is 2.x."),
    ModelRule(
        "sknd-path", "2.15", "violation", "Paths of modules and tensor files are valid and different on every system."
    ),
    ModelRule("sknd-import", "2.15", "note", "Imported modules are in the folder or in the standard library."),
    ModelRule(
        "sknd-operator",
        "2.15",
        "violation",
        "An invoked operator belongs to the module or to a module that it imports.",
    ),
    ModelRule("sknd-name", "2.2", "violation", "A name in an expression is declared in the same definition."),
    ModelRule("sknd-extent", "2.6", "violation", "Extents of variables are integers that a tensor file can have."),
    ModelRule("sknd-data-missing", "2.7", "violation", "Every variable of the first graph has a tensor file."),
    ModelRule("sknd-data-file", "2.7", "violation", "A tensor file is well-formed (NNEF 1.0.3, 5.2)."),
    ModelRule("sknd-data-shape", "2.7", "violation", "A tensor file has the shape of its variable."),
    ModelRule("sknd-data-type", "2.7", "violation", "The items of a tensor file have the data type of its variable."),
    ModelRule("sknd-data-variable", "2.7", "violation", "Every tensor file belongs to a variable."),
    ModelRule("sknd-vendor-data", "2.7", "note", "Items of a vendor's item type are not checked."),
    ModelRule("sknd-vendor-file", "2.15", "note", "Other files belong to vendors."),
)
#: Rules by id.
RULES = {rule.id: rule for rule in _RULES}
