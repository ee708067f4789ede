"""Results of every packager on real models, side by side: `make bench-packager`."""
