"""Many callers, one model: whose requests go into the next sweep."""
