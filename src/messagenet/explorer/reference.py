"""The description of the interface as a page, made from its OpenAPI document; nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.5; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, h2 { font-family: ui-monospace, monospace; }
h2 { border-top: 1px solid; padding-top: 1rem; font-size: 1.1rem; }
table { border-collapse: collapse; }
td, th { padding: 0.15rem 1rem 0.15rem 0; text-align: left; vertical-align: top; }
"""


def page(description: Mapping[str, Any]) -> str:
    """The page of an OpenAPI document."""
    schemas = description.get("components", {}).get("schemas", {})
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    shapes = "".join(_shape(name, schema) for name, schema in schemas.items())
    info = description["info"]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="docs.css">'
        f"<title>{escape(info['title'])}</title></head><body><h1>{escape(info['title'])}</h1>"
        f"<p>{escape(info.get('description', ''))} "
        '<a href="./">The page</a>, <a href="openapi.json">this as OpenAPI</a>.</p>'
        f"{operations}<h1>Shapes</h1>{shapes}</body></html>"
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    form = operation.get("requestBody", {}).get("content", {})
    sent = "".join(
        f"<p>Sent as <code>{escape(media)}</code>: {_type(content.get('schema', {}))}</p>"
        + _properties(content.get("schema", {}))
        for media, content in form.items()
    )
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{_answer(answer)}</td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation.get('description', ''))}</p>{sent}"
        f"<table><tr><th>Status</th><th>Answer</th><th></th></tr>{answers}</table>"
    )


def _answer(answer: Mapping[str, Any]) -> str:
    parts = (
        _type(content.get("schema", {})) or escape(media)
        for media, content in answer.get("content", {}).items()
    )
    return " or ".join(parts)


def _shape(name: str, schema: Mapping[str, Any]) -> str:
    text = escape(schema.get("description", ""))
    return f'<h2 id="{escape(name)}">{escape(name)}</h2><p>{text}</p>{_properties(schema)}'


def _properties(schema: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_type(value)}</td>"
        f"<td>{escape(value.get('description', ''))}</td></tr>"
        for name, value in schema.get("properties", {}).items()
    )
    return f"<table>{rows}</table>" if rows else ""


def _type(schema: Mapping[str, Any]) -> str:
    """The name of a shape, linked to it."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if choices := schema.get("anyOf"):
        return " or ".join(map(_type, choices))
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {_type(schema['items'])}"
    return escape(str(schema.get("format") or schema.get("type", "")))
