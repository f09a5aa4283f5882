"""Tables and figures from the files of runs."""
