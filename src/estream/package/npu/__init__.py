"""What a package for the NPU holds: the shapes of its graphs, and pages in the layout that the graphs read."""
