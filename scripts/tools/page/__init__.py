"""Tests of the page in a real browser: its content, console errors, and screenshots."""
