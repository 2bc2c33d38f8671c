"""Many texts: shards, workers, and files that survive a crash."""
