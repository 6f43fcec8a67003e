"""Rows for the causes of failures, and the search for them in logs."""
