"""The paper on top of the library."""
