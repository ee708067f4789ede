"""What every packager makes of real models, side by side: `make bench-packager`."""
