"""Files by kind: how they are written whole, checked, and kept from being replaced."""
