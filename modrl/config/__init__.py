"""Settings and components: from YAML with line numbers to typed, frozen objects, and back."""

from modrl.config.components import (
    ADAPTERS,
    REGISTRY,
    Component,
    builtins_of,
    import_module,
    is_builtin,
    load_object,
    module_name,
    public_name,
    raised,
    resolve,
    with_article,
)
from modrl.config.documents import Document, merge, override, parse, read, read_file
from modrl.config.files import dump, origin_of, to_yaml, validate
from modrl.config.problems import BadInput, ConfigError, Origin, Path_, Problem, counted, dotted, nearest
from modrl.config.schema import json_schema
from modrl.config.settings import Settings, problem, shown

__all__ = [
    "ADAPTERS", "REGISTRY", "BadInput", "Component", "ConfigError", "Document", "Origin", "Path_", "Problem", "Settings", "builtins_of",
    "counted", "dotted", "dump", "import_module", "is_builtin", "json_schema", "load_object", "merge", "module_name", "nearest", "origin_of",
    "override", "parse", "problem", "public_name", "raised", "read", "read_file", "resolve", "shown", "to_yaml", "validate", "with_article",
]  # fmt: skip
