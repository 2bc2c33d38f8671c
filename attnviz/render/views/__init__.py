"""Views: one file each, ``view(result, …) -> Document`` of neutral shapes."""
