"""The version of which the stand-in has the flags, the variables and the words."""

__version__ = "2.13.0+standin"
