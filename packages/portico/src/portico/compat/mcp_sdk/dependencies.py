"""Dependencies of the official SDK under the SDK's names."""

from __future__ import annotations

from portico.server.components.dependencies import SamplingRequest

Sample = SamplingRequest
