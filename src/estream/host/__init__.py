"""The machine below: limits, disks, files, buffers, sizes."""
