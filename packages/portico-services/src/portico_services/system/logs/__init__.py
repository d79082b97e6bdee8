"""Event logs: journals, text files, Windows event log files and live logs behind one interface."""
