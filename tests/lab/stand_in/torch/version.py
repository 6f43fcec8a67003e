"""The version whose flags, variables and messages the stand-in has."""

__version__ = "2.13.0+standin"
