"""What a package for the NPU holds: graph shapes, pages in the graphs' layout."""
