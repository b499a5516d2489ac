"""The machine and its operating system: limits, disks, files, buffers, sizes."""
