"""An MCP server from an OpenAPI document. The API receives no request until a tool is called.

Needs portico[openapi].
"""

from __future__ import annotations

from portico import Server

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "CRM", "version": "1.0.0"},
    "paths": {
        "/customers/{id}": {
            "get": {
                "operationId": "readCustomer",
                "summary": "A customer, by id",
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
                "responses": {"200": {"description": "The customer"}},
            }
        }
    },
}

server = Server.from_openapi(DOCUMENT, base_url="https://crm.example.com/v1", auth="the key")

if __name__ == "__main__":
    server.run()
