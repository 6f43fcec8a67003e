"""Known log lines: tables of causes and remedies, and how to find them in logs."""
