"""Timelines of a sweep, and pictures of them."""
