"""The subcommands for those who operate masters."""
