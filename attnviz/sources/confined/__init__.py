"""Work on strangers' files in a child process, under limits of memory and time."""
