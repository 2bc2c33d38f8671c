"""What everything but a trace looks like as shapes: summaries, head reports, comparisons, batches."""
