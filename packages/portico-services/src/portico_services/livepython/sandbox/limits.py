"""Resource limits of a session."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

# One reply of a worker. It holds a value, a text and a few images, each with a separate limit.
MAX_REPLY_BYTES = 8 * MIB
# Saved names of a session: one chunk, and in total.
SESSION_CHUNK_BYTES = MIB
MAX_SESSION_BYTES = 32 * MIB


@dataclass(frozen=True)
class SandboxLimits:
    """Limits that the kernel enforces, or the server while reading."""

    # Address space of one worker, in bytes.
    memory_bytes: int = 1024 * MIB
    # CPU seconds over the lifetime of a session.
    cpu_seconds: int = 600
    # Threads that code may start; none by default. RLIMIT_NPROC cannot limit them for root.
    max_threads: int = 0
    # Bytes in the scratch directory, and number of files and directories.
    scratch_bytes: int = 256 * MIB
    max_scratch_entries: int = 10_000
    # Bytes per file, and simultaneously open files.
    max_file_bytes: int = 64 * MIB
    max_open_files: int = 128
    # Printed bytes per evaluation: retained, and at which the worker is killed.
    max_output_bytes: int = 256 * KIB
    output_kill_bytes: int = 16 * MIB
    # Characters of a value's text, and bytes of its JSON.
    max_text_chars: int = 64 * KIB
    max_value_bytes: int = 64 * KIB
    # Images per evaluation, and bytes per image.
    max_images: int = 4
    max_image_bytes: int = 1024 * KIB
