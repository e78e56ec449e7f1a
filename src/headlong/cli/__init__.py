"""The command line: the commands, what they read, what they show."""
