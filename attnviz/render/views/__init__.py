"""What a trace looks like as shapes: one file per view."""
