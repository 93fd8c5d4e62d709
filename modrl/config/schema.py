"""The JSON Schema of files, for editors."""

from __future__ import annotations

from typing import Any

from modrl.config.components import KIND, builtins_of
from modrl.config.settings import Settings


def json_schema(cls: type[Settings]) -> dict[str, Any]:
    """The JSON Schema of a file of these settings, with one definition for every kind of component."""
    definitions: dict[str, Any] = {}

    def lifted(schema: dict[str, Any]) -> dict[str, Any]:
        for name, definition in schema.pop("$defs", {}).items():
            definitions[name] = referring(definition)
        return referring(schema)

    def referring(part: Any) -> Any:
        if isinstance(part, dict) and KIND in part:
            define(part[KIND])
            return {"$ref": f"#/$defs/{part[KIND]}", **{key: value for key, value in part.items() if key != KIND}}
        if isinstance(part, dict):
            return {key: referring(value) for key, value in part.items()}
        return [referring(item) for item in part] if isinstance(part, list) else part

    def define(kind: str) -> None:
        if kind in definitions:
            return
        definitions[kind] = {}  # stands for itself while its members are written
        choices: list[Any] = [{"type": "string", "enum": list(builtins_of(kind))}, {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}]
        for name, member in builtins_of(kind).items():
            shape = lifted(member.Config.model_json_schema())
            properties = {"name": {"const": name}, **shape.get("properties", {})}
            choices.append({**shape, "title": f"{kind} {name}", "properties": properties, "required": ["name", *shape.get("required", [])]})
        own = {"name": {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}}
        choices.append({"title": f"{kind} of one's own", "type": "object", "properties": own, "required": ["name"]})
        definitions[kind] = {"anyOf": choices}

    schema = lifted(cls.model_json_schema())
    whole = {key: schema.pop(key) for key in ("properties", "required", "additionalProperties") if key in schema}
    # A file that extends another may leave anything out, inside of its blocks too.
    parts = {name: part if "type" in part else {"anyOf": [part, {"type": "object"}]} for name, part in whole["properties"].items()}
    paths = {"type": "array", "items": {"type": "string"}}
    parts["extends"] = {"anyOf": [{"type": "string"}, paths], "description": "Files to lay this one over."}
    either = {"if": {"required": ["extends"]}, "then": {"properties": parts, "additionalProperties": False}, "else": whole}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, **either, "$defs": definitions}
