"""From the checkpoint's weights to a package's pages: equalisation, calibration, codes."""
