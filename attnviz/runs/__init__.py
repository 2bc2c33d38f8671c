"""One run, or a batch of them: source and core joined."""
