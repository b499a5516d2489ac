"""Devices: what computes the layers of a sweep."""
