"""`/openapi.json`: the routes but WebSockets and the page's, from the routes and the schemas of bodies themselves."""

from typing import Any
from warnings import catch_warnings, simplefilter

from fastapi import FastAPI

from crossdraft.serve.batches import BatchRequest
from crossdraft.serve.completions import OF_CHATS, CompletionRequest
from crossdraft.serve.response_items import OTHERS, ResponseRequest
from crossdraft.serve.schema import MAX_TOP, Body, ChatRequest

OR_TEXT = {"type": ["string", "array"]}  # a text, in place of a list
NUMBER = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_TOP}, {"type": "null"}]}
# Schemas of bodies, their fields that a route refuses, and what it reads otherwise.
BODIES: dict[str, tuple[type[Body], frozenset[str], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, frozenset(), {}),
    "/v1/completions": (CompletionRequest, OF_CHATS, {"prompt": OR_TEXT, "logprobs": NUMBER}),
    "/v1/responses": (ResponseRequest, OTHERS, {"input": OR_TEXT}),
    "/v1/batches": (BatchRequest, frozenset(), {}),
}
PARTS = {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}}
FORM = {"multipart/form-data": {"schema": {"type": "object", "required": ["file"], "properties": PARTS}}}
RESPONSES = {"200": {"description": "What was asked for."}, "default": {"description": "An error, as OpenAI's."}}


class OpenApi(FastAPI):
    """An application that also describes its plain routes, which FastAPI does not know."""

    def openapi(self) -> dict[str, Any]:
        """Describe the routes, once."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        with catch_warnings():
            simplefilter("ignore")  # routes of GET and HEAD have one name for both
            found = super().openapi()
        paths, schemas = found["paths"], dict[str, Any]()
        for path, (kind, refused, otherwise) in BODIES.items():
            schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {kind.__name__: schema}
            fields = {name: one for name, one in schema["properties"].items() if name not in refused}
            schema["properties"] = {name: one | otherwise.get(name, {}) for name, one in fields.items()}
            schema["required"] = [name for name in schema["required"] if name not in refused]
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
            described = paths.setdefault(path, {}).setdefault(
                "post", {"summary": "Answer", "description": kind.__doc__}
            )
            described["requestBody"] = {"required": True, "content": content}
        paths["/v1/files"]["post"]["requestBody"] = {"required": True, "content": FORM}
        for path in paths.values():
            path.pop("head", None)
            for described in path.values():
                described["responses"] = RESPONSES
        keys = {"key": {"type": "http", "scheme": "bearer"}}
        found |= {"components": {"schemas": schemas, "securitySchemes": keys}, "security": [{"key": []}, {}]}
        return found
