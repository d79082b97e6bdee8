"""Event logs: entries from journals, text, files of Windows and the live logs, asked in one way."""
