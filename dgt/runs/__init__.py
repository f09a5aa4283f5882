"""The run directory: its file names, who may write there, its writer, its reader, and what its metrics are called."""
