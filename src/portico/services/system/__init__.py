"""The machine: event logs, files, registry, processes. `service.py` alone knows that there is a protocol."""
