"""Checkpoints: complete or not there, found and read together by all ranks."""
