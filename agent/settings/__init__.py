"""The settings of a run, read from environment variables and validated together."""

from agent.settings.load import Loaded, load, read_settings
from agent.settings.model import Settings

__all__ = ["Loaded", "Settings", "load", "read_settings"]
