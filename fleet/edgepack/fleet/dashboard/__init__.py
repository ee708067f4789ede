"""The fleet's dashboard: pages rendered on the server, with a small script for live parts."""
