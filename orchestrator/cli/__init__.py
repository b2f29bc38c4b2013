"""The command `bgplb`: a file for each noun. Heavy modules are imported by the command that needs them."""
