"""Pictures drawn with characters."""
