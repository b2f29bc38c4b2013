"""Conversations with the core, compared with golden output."""
